//go:build unix

package testenv

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// PgBouncer is a pooler of one test's own, in transaction mode, in front of
// every database of a server. It ends with the test.
type PgBouncer struct {
	process
	port int
}

// StartPgBouncer runs a pooler in front of the server that a URL names. Whoever
// connects is let in and acts as the role, whatever name he gives. Each setting
// is "name=value" of PgBouncer's configuration.
func StartPgBouncer(tb testing.TB, server, role string, settings ...string) *PgBouncer {
	tb.Helper()
	program := Program(tb, "pgbouncer", []string{"--version"}, "pgbouncer", "/usr/sbin/pgbouncer")
	at, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}
	// Not the test's own folder: as root, that is closed to the pooler's user.
	dir, err := os.MkdirTemp("", "unavez-pgbouncer-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	owner := serverUser(tb)
	give := func(path string) {
		if owner.Credential != nil {
			if err := os.Chown(path, int(owner.Credential.Uid), int(owner.Credential.Gid)); err != nil {
				tb.Fatal(err)
			}
		}
	}
	give(dir)
	b := &PgBouncer{process: process{tb: tb, name: "pgbouncer", ready: "process up"}}
	file := filepath.Join(dir, "pgbouncer.ini")
	b.build = func() *exec.Cmd {
		cmd := exec.Command(program, file)
		cmd.Dir, cmd.SysProcAttr = dir, owner
		return cmd
	}
	password, _ := at.User.Password()
	behind := "host=" + at.Hostname() + " port=" + at.Port() + " user=" + at.User.Username() + " connect_query='set role " + role + "'"
	if password != "" {
		behind += " password=" + password
	}
	tb.Cleanup(b.kill)
	first(tb, func(port int) error {
		b.port = port
		text := "[databases]\n* = " + behind + "\n[pgbouncer]\n" + strings.Join(append([]string{
			"listen_addr=" + host, "listen_port=" + strconv.Itoa(port), "unix_socket_dir=", "auth_type=any",
			"pool_mode=transaction", "max_client_conn=500", "default_pool_size=48", "log_connections=0", "log_disconnections=0",
		}, settings...), "\n") + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return err
		}
		give(file)
		return b.start()
	})
	return b
}

// URL names a database behind the pooler. The driver is told to prepare nothing,
// which PgBouncer before 1.21 would lose.
func (b *PgBouncer) URL(database string) string {
	return "postgres://anybody@" + address(b.port) + "/" + database + "?sslmode=disable&default_query_exec_mode=exec"
}
