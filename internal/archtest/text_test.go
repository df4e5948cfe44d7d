package archtest

import (
	"bytes"
	"os/exec"
	"path"
	"regexp"
	"strings"
)

// cleanText refuses what a reader of the project should never meet in any file.
// The words stand in pieces here, so that this file keeps its own rule.
func cleanText() rule {
	hosts := registryHosts()
	literal := make([]string, len(hosts))
	for i, host := range hosts {
		literal[i] = regexp.QuoteMeta(host)
	}
	refused := []struct {
		what    string
		pattern *regexp.Regexp
	}{
		{"a path of somebody's machine", regexp.MustCompile(`(?:^|[^\w.\-)}])/(?:work|root|home)/`)},
		{"an unfinished mark", regexp.MustCompile(`\b(?:TO` + `DO|FIX` + `ME|X{3}|HA` + `CK)\b`)},
		{"a package registry's host", regexp.MustCompile(strings.Join(literal, "|"))},
	}
	check := func(t *tree) (found []finding) {
		for name, content := range t.texts {
			if path.Base(name) == "go.sum" {
				continue // hashes
			}
			for i, line := range bytes.Split(content, []byte("\n")) {
				for _, r := range refused {
					if hit := r.pattern.Find(line); hit != nil {
						found = append(found, finding{file: name, line: i + 1, text: r.what + ": " + strings.TrimSpace(string(hit))})
					}
				}
			}
		}
		return found
	}
	slash := "/"
	return rule{
		name: "text", check: check,
		bad: []fixture{
			one("README.md", "see "+slash+"work/main\n", "1"),
			one("docs/a.md", "\n`"+slash+"home/me/x`\n", "2"),
			one("scripts/a", slash+"root/.cache\n", "1"),
			one("a/a.go", "package a // TO"+"DO\n", "1"),
			one("a/a.go", "package a\n\n// FIX"+"ME: later, XX"+"X and HA"+"CK\n", "3"),
			one("Dockerfile", "ENV A=https://"+hosts[0]+"\n", "1"),
			{
				files: map[string]string{"bench/go.mod": "module x\n\n// HA" + "CK\n"},
				want:  []string{"bench/go.mod:3"},
			},
		},
		good: []fixture{
			one("README.md", "example.com/ho"+"me/me, a/wo"+"rk/b, mktemp name.XX"+"XXXX, hackathon\n"),
			one("go.sum", "example.com/x v1 h1:TO"+"DO=\n"),
		},
	}
}

// registryHosts lists the usual hosts, and the one that this environment names.
func registryHosts() []string {
	hosts := []string{
		"proxy.golang" + ".org", "sum.golang" + ".org", "registry." + "npmjs.org", "deb." + "debian.org",
		"pypi." + "org", "docker" + ".io", "ghcr" + ".io", "gcr" + ".io",
	}
	out, err := exec.Command("go", "env", "GOPROXY").Output()
	if err != nil {
		return hosts // the usual ones are held all the same
	}
	for entry := range strings.FieldsFuncSeq(string(out), func(r rune) bool { return r == ',' || r == '|' }) {
		if _, rest, ok := strings.Cut(strings.TrimSpace(entry), "://"); ok {
			host, _, _ := strings.Cut(rest, "/")
			hosts = append(hosts, host)
		}
	}
	return hosts
}
