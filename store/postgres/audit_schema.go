package postgres

import (
	"context"
	_ "embed" // the catalog is a file of its own
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/unavez/unavez/store"
)

// schema proves that what the promises rest on is what this program made.
func (a *auditor) schema(ctx context.Context, all []migration) error {
	at, err := version(ctx, a.pool)
	switch {
	case err != nil:
		return err
	case at > len(all):
		return newer(at, len(all))
	case at < len(all):
		return fmt.Errorf("schema is at version %d, this program wants %d: run unavez migrate, or audit with the version that serves", at, len(all))
	}
	return a.snapshot(ctx, func(ctx context.Context, tx pgx.Tx, _ *layoutFound) error {
		if err := a.functions(ctx, tx, functionsOf(all)); err != nil {
			return err
		}
		if err := a.tables(ctx, tx); err != nil {
			return err
		}
		return a.privileges(ctx, tx)
	})
}

// function is what makes a function of the schema do what it does.
type function struct {
	body, volatility, language, settings string
	definer                              bool
}

// functionsOf reads the functions that migrations leave behind.
func functionsOf(all []migration) map[string]function {
	made := regexp.MustCompile(`(?s)CREATE (?:OR REPLACE )?FUNCTION unavez\.(\w+)\((.*?)AS \$\$(.*?)\$\$|DROP FUNCTION (?:IF EXISTS )?unavez\.(\w+)`)
	set := regexp.MustCompile(`^(\w+) = ([\w, ]+?)\s*$`)
	out := map[string]function{}
	for _, m := range all {
		for _, found := range made.FindAllStringSubmatch(m.sql, -1) {
			if found[4] != "" {
				delete(out, found[4])
				continue
			}
			f := function{body: found[3], volatility: "v", language: "plpgsql", definer: strings.Contains(found[2], "SECURITY DEFINER")}
			switch {
			case strings.Contains(found[2], " IMMUTABLE"):
				f.volatility = "i"
			case strings.Contains(found[2], " STABLE"):
				f.volatility = "s"
			}
			if strings.Contains(found[2], "LANGUAGE sql") {
				f.language = "sql"
			}
			for i, part := range strings.Split(found[2], " SET ") {
				if one := set.FindStringSubmatch(part); i > 0 && one != nil {
					f.settings = strings.TrimPrefix(f.settings+"; "+one[1]+"="+one[2], "; ")
				}
			}
			out[found[1]] = f
		}
	}
	return out
}

// functions compares the functions of the schema.
func (a *auditor) functions(ctx context.Context, tx pgx.Tx, want map[string]function) error {
	const text = "SELECT p.proname, p.oid::regprocedure::text, p.prosrc, p.provolatile::text, l.lanname, coalesce(array_to_string(p.proconfig, '; '), ''), p.prosecdef" +
		" FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang WHERE p.pronamespace = 'unavez'::regnamespace ORDER BY p.proname, p.oid"
	seen := map[string]bool{}
	_, err := collect(ctx, tx, text, nil, func(row pgx.CollectableRow) (struct{}, error) {
		var name, signature string
		var f function
		if err := row.Scan(&name, &signature, &f.body, &f.volatility, &f.language, &f.settings, &f.definer); err != nil {
			return struct{}{}, err
		}
		wanted, known := want[name]
		a.Look(1, store.FunctionsTrue)
		switch {
		case !known || seen[name]:
			a.Break(store.FunctionsTrue, 1, signature+" is not of this program")
		case f.body != wanted.body:
			a.Break(store.FunctionsTrue, 1, signature+" has another text")
		case f != wanted:
			a.Break(store.FunctionsTrue, 1, signature+" has other attributes")
		}
		seen[name] = true
		return struct{}{}, nil
	})
	for name := range want {
		if !seen[name] {
			a.Break(store.FunctionsTrue, 1, "unavez."+name+" is missing")
		}
	}
	return err
}

//go:embed catalog.txt
var catalog string

// catalogText lists what the schema is made of, but for its functions, one part
// a line, the same in every version of PostgreSQL.
const catalogText = `SELECT line FROM (
SELECT 'relation ' || c.relname || ' ' || c.relkind::text || c.relpersistence::text || CASE WHEN c.relrowsecurity THEN ' row security' ELSE '' END AS line
    FROM pg_class c WHERE c.relnamespace = 'unavez'::regnamespace AND c.relkind NOT IN ('i', 't')
UNION ALL
SELECT 'column ' || c.relname || ' ' || row_number() OVER (PARTITION BY c.oid ORDER BY t.attnum) || ' ' || t.attname || ' ' || format_type(t.atttypid, t.atttypmod)
        || CASE WHEN t.attnotnull THEN ' not null' ELSE '' END
        || CASE WHEN t.attcollation <> 0 AND t.attcollation <> y.typcollation THEN ' collate ' || (SELECT o.collname FROM pg_collation o WHERE o.oid = t.attcollation) ELSE '' END
        || coalesce(' default ' || pg_get_expr(d.adbin, d.adrelid), '') || CASE WHEN t.attidentity <> '' THEN ' identity ' || t.attidentity::text ELSE '' END
    FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid JOIN pg_type y ON y.oid = t.atttypid LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = t.attnum
    WHERE c.relnamespace = 'unavez'::regnamespace AND c.relkind IN ('r', 'p', 'v', 'm', 'f', 'c') AND t.attnum > 0 AND NOT t.attisdropped
UNION ALL
SELECT 'constraint ' || c.relname || ' ' || pg_get_constraintdef(o.oid) || CASE WHEN o.convalidated THEN '' ELSE ' not valid' END
    FROM pg_constraint o JOIN pg_class c ON c.oid = o.conrelid WHERE c.relnamespace = 'unavez'::regnamespace AND o.contype IN ('p', 'u', 'f', 'c', 'x')
UNION ALL
SELECT 'index ' || pg_get_indexdef(i.indexrelid) || CASE WHEN i.indisvalid AND i.indisready THEN '' ELSE ' invalid' END
    FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'unavez'::regnamespace AND c.relkind <> 't'
UNION ALL
SELECT 'trigger ' || c.relname || ' ' || t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = 'unavez'::regnamespace AND NOT t.tgisinternal
UNION ALL
SELECT 'rule ' || c.relname || ' ' || r.rulename FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class WHERE c.relnamespace = 'unavez'::regnamespace AND r.rulename <> '_RETURN'
UNION ALL
SELECT 'policy ' || c.relname || ' ' || p.polname FROM pg_policy p JOIN pg_class c ON c.oid = p.polrelid WHERE c.relnamespace = 'unavez'::regnamespace
UNION ALL
SELECT 'inherits ' || c.relname || ' ' || i.inhparent::regclass::text FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
    WHERE (c.relnamespace = 'unavez'::regnamespace OR i.inhparent IN (SELECT p.oid FROM pg_class p WHERE p.relnamespace = 'unavez'::regnamespace)) AND c.relkind NOT IN ('i', 'I')
) l ORDER BY line COLLATE "C"`

// lines reads the catalog.
func lines(ctx context.Context, tx pgx.Tx) ([]string, error) {
	return collect(ctx, tx, catalogText, nil, func(row pgx.CollectableRow) (line string, err error) {
		err = row.Scan(&line)
		return line, err
	})
}

// tables compares everything else of the schema. An index of somebody's own
// that makes nothing unique may stay: it changes no answer.
func (a *auditor) tables(ctx context.Context, tx pgx.Tx) error {
	got, err := lines(ctx, tx)
	if err != nil {
		return err
	}
	want := strings.Split(strings.TrimSuffix(catalog, "\n"), "\n")
	a.Look(int64(len(got)), store.TablesTrue)
	for _, line := range want {
		if !slices.Contains(got, line) {
			a.Break(store.TablesTrue, 1, "missing: "+line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) && !strings.HasPrefix(line, "index CREATE INDEX ") {
			a.Break(store.TablesTrue, 1, "not of this program: "+line)
		}
	}
	return nil
}

// grant is one right on one thing that unavez_app needs.
type grant struct {
	right, column, kind, object string // kind is schema, table, sequence or function; object "*" is all of them
}

// text is the statement that gives it.
func (g grant) text(role string) string {
	right := g.right
	if g.column != "" {
		right += " (" + g.column + ")"
	}
	on := map[string]string{"schema": "SCHEMA ", "table": "", "sequence": "SEQUENCE ", "function": "FUNCTION "}[g.kind] + g.object
	if g.object == "*" {
		on = "ALL FUNCTIONS IN SCHEMA unavez"
	}
	return "GRANT " + right + " ON " + on + " TO " + role
}

// grantsOf reads the rights that grants.sql gives.
func grantsOf(text string) ([]grant, error) {
	comment := regexp.MustCompile(`(?m)^--.*$`)
	statement := regexp.MustCompile(`(?s)^GRANT (.+?) ON (.+?) TO unavez_app$`)
	part := regexp.MustCompile(`(\w+)(?:\s*\(([^)]*)\))?`)
	var all []grant
	for one := range strings.SplitSeq(comment.ReplaceAllString(text, ""), ";") {
		one = strings.Join(strings.Fields(one), " ")
		if one == "" {
			continue
		}
		m := statement.FindStringSubmatch(one)
		if m == nil {
			return nil, fmt.Errorf("postgres store: grants: %q cannot be read", one)
		}
		kind, objects := "table", strings.Split(m[2], ", ")
		if name, ok := strings.CutPrefix(m[2], "SCHEMA "); ok {
			kind, objects = "schema", []string{name}
		} else if name, ok := strings.CutPrefix(m[2], "SEQUENCE "); ok {
			kind, objects = "sequence", []string{name}
		} else if m[2] == "ALL FUNCTIONS IN SCHEMA unavez" {
			kind, objects = "function", []string{"*"}
		}
		for _, object := range objects {
			for _, right := range part.FindAllStringSubmatch(m[1], -1) {
				for column := range strings.SplitSeq(right[2], ",") {
					all = append(all, grant{right[1], strings.TrimSpace(column), kind, object})
				}
			}
		}
	}
	return all, nil
}

// aclText lists every right on the schema and its parts that is not the owner's.
const aclText = `SELECT CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE r.grantee::regrole::text END, r.privilege_type, r.col, r.kind, r.object FROM (
SELECT x.grantee, x.privilege_type, '' AS col, 'schema' AS kind, n.nspname::text AS object, n.nspowner AS owner
    FROM pg_namespace n, aclexplode(n.nspacl) x WHERE n.nspname = 'unavez'
UNION ALL
SELECT x.grantee, x.privilege_type, '', CASE c.relkind WHEN 'S' THEN 'sequence' ELSE 'table' END, 'unavez.' || c.relname, c.relowner
    FROM pg_class c, aclexplode(c.relacl) x WHERE c.relnamespace = 'unavez'::regnamespace
UNION ALL
SELECT x.grantee, x.privilege_type, t.attname, 'table', 'unavez.' || c.relname, c.relowner
    FROM pg_class c JOIN pg_attribute t ON t.attrelid = c.oid, aclexplode(t.attacl) x WHERE c.relnamespace = 'unavez'::regnamespace
UNION ALL
SELECT x.grantee, x.privilege_type, '', 'function', 'unavez.' || p.proname, p.proowner
    FROM pg_proc p, aclexplode(p.proacl) x WHERE p.pronamespace = 'unavez'::regnamespace
) r WHERE r.grantee <> r.owner ORDER BY 1, 4, 5, 2, 3`

// ownerText lists who owns the parts of the schema.
const ownerText = `SELECT o.part, o.owner::regrole::text, n.nspowner::regrole::text,
    coalesce((SELECT pg_has_role(a.oid, o.owner, 'MEMBER') AND NOT a.rolsuper FROM pg_roles a WHERE a.rolname = 'unavez_app'), false)
FROM pg_namespace n, LATERAL (
    SELECT 'the schema' AS part, n.nspowner AS owner
    UNION ALL SELECT c.relname, c.relowner FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind NOT IN ('i', 't')
    UNION ALL SELECT p.proname || '()', p.proowner FROM pg_proc p WHERE p.pronamespace = n.oid
) o WHERE n.nspname = 'unavez' ORDER BY 1`

// privileges proves that who runs cannot change what is stored but by the
// protocol. Reading is anybody's who was let in.
func (a *auditor) privileges(ctx context.Context, tx pgx.Tx) error {
	needed, err := grantsOf(grants)
	if err != nil {
		return err
	}
	reads := []string{"SELECT", "USAGE", "EXECUTE"}
	_, err = collect(ctx, tx, aclText, nil, func(row pgx.CollectableRow) (struct{}, error) {
		var who string
		var g grant
		if err := row.Scan(&who, &g.right, &g.column, &g.kind, &g.object); err != nil {
			return struct{}{}, err
		}
		a.Look(1, store.Privileges)
		if slices.Contains(reads, g.right) || who == "unavez_app" && slices.Contains(needed, g) {
			return struct{}{}, nil
		}
		a.Break(store.Privileges, 1, strings.Replace(strings.Replace(g.text(who), "GRANT ", "REVOKE ", 1), " TO ", " FROM ", 1))
		return struct{}{}, nil
	})
	if err != nil {
		return err
	}
	_, err = collect(ctx, tx, ownerText, nil, func(row pgx.CollectableRow) (struct{}, error) {
		var part, owner, of string
		var app bool
		if err := row.Scan(&part, &owner, &of, &app); err != nil {
			return struct{}{}, err
		}
		a.Look(1, store.Privileges)
		if app {
			a.Break(store.Privileges, 1, "unavez_app is a member of "+owner+", which owns "+part)
		} else if owner != of {
			a.Break(store.Privileges, 1, part+" is owned by "+owner+", the schema by "+of)
		}
		return struct{}{}, nil
	})
	if err != nil {
		return err
	}
	const role = "SELECT count(*), count(*) FILTER (WHERE rolsuper OR rolbypassrls OR rolcreaterole) FROM pg_roles WHERE rolname = 'unavez_app'"
	var roles, mighty int64
	if err := tx.QueryRow(ctx, role).Scan(&roles, &mighty); err != nil {
		return err
	}
	if mighty > 0 {
		a.Break(store.Privileges, 1, "unavez_app is a superuser, or may make roles")
	}
	if roles == 0 {
		a.Leave(store.Privileges, "there is no role unavez_app: who runs is whoever connects (unavez migrate --roles)")
	}
	return nil
}
