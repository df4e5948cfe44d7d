package teeth

// zooOfEdges are bugs of HTTP and of signatures.
func zooOfEdges() []bug {
	return []bug{
		{
			name: "the answer is not frozen",
			changes: one("httpkey/answer.go", `	if !bodyless(a.status) {
		result.Body = a.body.memory
	}
	return result`, `	return result`),
			hunts: []hunt{{exchanges, "httpkey", "."}},
		},
		{
			name:    "a cookie is frozen and given to whoever comes again",
			changes: one("httpkey/answer.go", `	case "Set-Cookie", "Www-Authenticate",`, `	case "Www-Authenticate",`),
			hunts:   []hunt{{exchanges, "httpkey", "."}},
		},
		{
			name:    "two callers share a key",
			changes: one("httpkey/edge.go", "x.key = [...]string{x.caller.Principal, key}", `x.key = [...]string{"", key}`),
			hunts:   []hunt{{exchanges, "httpkey", "."}},
		},
		{
			name:    "an answer after 500 is frozen",
			changes: one("httpkey/layer.go", "	return f.problem != nil && f.problem.Status < 500 && !passing(f.problem.Status)", "	return f.problem != nil && !passing(f.problem.Status)"),
			hunts:   []hunt{{exchanges, "httpkey", "."}},
		},
		{
			name: "a dot in the id moves a signature",
			changes: one("source/standard.go", `if strings.Contains(id, ".") {
		return Proof{}, refusef(`, `if strings.Contains(id, "..") {
		return Proof{}, refusef(`),
			hunts: []hunt{{vectors, "source", "."}},
		},
		{
			name: "one signature that fits is not enough, and none is",
			changes: one("source/standard.go", `			found = hmac.Equal(d, sum) || found
		}
		return found
	})`, `			found = hmac.Equal(d, sum) || found
		}
		return found || len(v1) == 0
	})`),
			hunts: []hunt{{vectors, "source", "."}},
		},
		{
			name:    "a timestamp of tomorrow is taken",
			changes: one("source/standard.go", "if err := within(r.At, at, config.tolerance(), s.timestamp); err != nil {", "if err := within(r.At, at, config.tolerance(), s.timestamp); err != nil && at.Before(r.At) {"),
			hunts:   []hunt{{vectors, "source", "."}},
		},
	}
}
