//go:build unix

package testenv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// PostgresServer is a PostgreSQL of one test's own, with fsync on. It ends with
// the test, and its data with it. Its methods are for the test's goroutine.
type PostgresServer struct {
	process
	bin      string
	dir      string
	port     int
	settings []string
}

// StartPostgres makes and runs an empty PostgreSQL, which takes some seconds.
// Each setting is "name=value"; it comes after, and so wins over, the own ones.
func StartPostgres(tb testing.TB, settings ...string) *PostgresServer {
	tb.Helper()
	s := newPostgres(tb, settings)
	if err := s.run("initdb", "-D", s.dir, "-U", "postgres", "-A", "trust", "-N", "--no-locale", "-E", "UTF8"); err != nil {
		tb.Fatal(err)
	}
	s.first(tb)
	return s
}

func newPostgres(tb testing.TB, settings []string) *PostgresServer {
	tb.Helper()
	bin := postgresFolder()
	if bin == "" {
		missing(tb, "no PostgreSQL binaries (set PGBIN); run, as root: scripts/services up postgres")
	}
	// Not the test's own folder: as root, that is closed to the server's user.
	parent, err := os.MkdirTemp("", "unavez-postgres-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(parent); err != nil {
			tb.Error(err)
		}
	})
	s := &PostgresServer{bin: bin, dir: filepath.Join(parent, "data"), settings: settings}
	s.process = process{tb: tb, name: "postgres", ready: "ready to accept ", build: s.command}
	if err := os.Mkdir(s.dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	for _, owned := range []string{parent, s.dir} {
		if err := s.own(owned, nil); err != nil {
			tb.Fatal(err)
		}
	}
	return s
}

// postgresFolder finds the folder of initdb and postgres: PGBIN, else the newest.
func postgresFolder() string {
	if bin := os.Getenv("PGBIN"); bin != "" {
		return bin
	}
	var best string
	newest := 0
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql@*/bin", "/usr/local/opt/postgresql@*/bin"} {
		found, _ := filepath.Glob(pattern) // the patterns are well formed
		for _, bin := range found {
			_, major, _ := strings.Cut(filepath.Base(filepath.Dir(bin)), "@")
			if major == "" {
				major = filepath.Base(filepath.Dir(bin))
			}
			version, _ := strconv.Atoi(major) // 0 loses
			if _, err := os.Stat(filepath.Join(bin, "initdb")); err == nil && version > newest {
				best, newest = bin, version
			}
		}
	}
	if best == "" {
		if initdb, err := exec.LookPath("initdb"); err == nil {
			best = filepath.Dir(initdb)
		}
	}
	return best
}

// attributes are those of a server's process.
func (s *PostgresServer) attributes() *syscall.SysProcAttr {
	s.tb.Helper()
	return serverUser(s.tb)
}

// serverUser gives the attributes of a server that refuses to be root's: as root
// it runs as the user postgres.
func serverUser(tb testing.TB) *syscall.SysProcAttr {
	tb.Helper()
	a := attributes()
	if os.Geteuid() != 0 {
		return a
	}
	owner, err := user.Lookup("postgres")
	if err != nil {
		tb.Fatalf("PostgreSQL and PgBouncer refuse to run as root: %v", err)
	}
	uid, _ := strconv.ParseUint(owner.Uid, 10, 32) // numbers, on unix
	gid, _ := strconv.ParseUint(owner.Gid, 10, 32)
	a.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return a
}

// run runs one of PostgreSQL's programs to its end.
func (s *PostgresServer) run(program string, arguments ...string) error {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), arguments...)
	cmd.Dir, cmd.SysProcAttr = filepath.Dir(s.dir), s.attributes()
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.New(program + ": " + err.Error() + ":\n" + string(out))
	}
	return nil
}

func (s *PostgresServer) command() *exec.Cmd {
	arguments := []string{"-D", s.dir, "-p", strconv.Itoa(s.port)}
	for _, setting := range append([]string{
		"listen_addresses=" + host, "unix_socket_directories=", "max_connections=100", "shared_buffers=32MB",
		"wal_level=logical", "wal_keep_size=256MB", "max_prepared_transactions=16", "fsync=on",
	}, s.settings...) {
		arguments = append(arguments, "-c", setting)
	}
	cmd := exec.Command(filepath.Join(s.bin, "postgres"), arguments...)
	cmd.Dir, cmd.SysProcAttr = s.dir, s.attributes()
	return cmd
}

func (s *PostgresServer) first(tb testing.TB) {
	tb.Helper()
	tb.Cleanup(s.kill)
	first(tb, func(port int) error {
		s.port = port
		return s.start()
	})
}

// URL names its database postgres, as a superuser; the same after a restart.
func (s *PostgresServer) URL() string {
	return "postgres://postgres@" + s.Addr() + "/postgres?sslmode=disable"
}

// Addr is its host:port.
func (s *PostgresServer) Addr() string { return address(s.port) }

// Kill ends it and its backends at once, as kill -9 does.
func (s *PostgresServer) Kill() { s.tb.Helper(); s.kill() }

// Stop shuts it down in order, breaking off what runs.
func (s *PostgresServer) Stop() {
	s.tb.Helper()
	if s.running == nil {
		return
	}
	_ = s.running.Process.Signal(syscall.SIGINT) // one that has ended needs none
	s.wait()
}

// Start runs it again, as it was left.
func (s *PostgresServer) Start() {
	s.tb.Helper()
	if err := s.start(); err != nil {
		s.tb.Fatal(err)
	}
}

// Pause stops it and its backends as they stand.
func (s *PostgresServer) Pause() { s.tb.Helper(); s.signal(syscall.SIGSTOP) }

// Resume lets it go on after [PostgresServer.Pause].
func (s *PostgresServer) Resume() { s.tb.Helper(); s.signal(syscall.SIGCONT) }

// Standby copies it while it runs and runs the copy as its streaming standby.
// Only the server itself is needed: some builds have no pg_basebackup.
func (s *PostgresServer) Standby(settings ...string) *PostgresServer {
	s.tb.Helper()
	standby := newPostgres(s.tb, append([]string{"primary_conninfo=host=" + host + " port=" + strconv.Itoa(s.port) + " user=postgres"}, settings...))
	ctx, cancel := context.WithTimeout(s.tb.Context(), limit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL()) // one session from begin to end
	if err != nil {
		s.tb.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }() // the copy is made
	begin, end := "select pg_backup_start('standby', true)", "select labelfile from pg_backup_stop(false)"
	if major, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), "."); major < "15" {
		begin, end = "select pg_start_backup('standby', true, false)", "select labelfile from pg_stop_backup(false, false)"
	}
	if _, err := conn.Exec(ctx, begin); err != nil {
		s.tb.Fatal(err)
	}
	if err := standby.copyFrom(s.dir); err != nil {
		s.tb.Fatal(err)
	}
	var label string
	if err := conn.QueryRow(ctx, end).Scan(&label); err != nil {
		s.tb.Fatal(err)
	}
	for name, content := range map[string]string{"backup_label": label, "standby.signal": ""} {
		if err := standby.own(filepath.Join(standby.dir, name), os.WriteFile(filepath.Join(standby.dir, name), []byte(content), 0o600)); err != nil {
			s.tb.Fatal(err)
		}
	}
	standby.first(s.tb)
	return standby
}

// copyFrom copies the files of a running server in backup mode: they may change
// and go meanwhile. The log comes by streaming.
func (s *PostgresServer) copyFrom(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path) // it is below
		to := filepath.Join(s.dir, name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil || name == ".":
			return err
		case entry.IsDir():
			return s.own(to, os.Mkdir(to, 0o700))
		case name == "postmaster.pid" || name == "postmaster.opts" || strings.HasPrefix(name, "pg_wal/") || strings.HasPrefix(name, "pg_replslot/"):
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return s.own(to, os.WriteFile(to, content, 0o600))
	})
}

// own gives what was made to the server's user, unless making it failed.
func (s *PostgresServer) own(path string, made error) error {
	id := s.attributes().Credential
	if made != nil || id == nil {
		return made
	}
	return os.Chown(path, int(id.Uid), int(id.Gid))
}

// Promote makes a standby a primary, on a timeline of its own.
func (s *PostgresServer) Promote() {
	s.tb.Helper()
	ctx, cancel := context.WithTimeout(s.tb.Context(), limit)
	defer cancel()
	conn, err := pgx.Connect(ctx, s.URL())
	if err != nil {
		s.tb.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }() // the answer is here
	var done bool
	if err := conn.QueryRow(ctx, "select pg_promote(true, 60)").Scan(&done); err != nil || !done {
		s.tb.Fatalf("promote: %v, %v", done, err)
	}
}
