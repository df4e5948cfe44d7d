package teeth

import (
	"slices"
	"strings"
	"testing"
)

func TestConjunctsAreFound(t *testing.T) {
	t.Parallel()
	const source = `IF a = 1 AND (b OR c) THEN
		UPDATE x SET y = 2 WHERE x.k = key AND x.f = fence AND NOT EXISTS (SELECT 1 FROM z WHERE z.k = x.k AND z.v > 0) RETURNING 1; -- this AND that
		SELECT count(*) FROM q WHERE q.v BETWEEN 1 AND 2;`
	var got []string
	for _, s := range Conjuncts(source) {
		got = append(got, strings.Join(strings.Fields(source[s.From:s.To]), " "))
	}
	want := []string{"a = 1", "(b OR c)", "x.k = key", "x.f = fence", "NOT EXISTS (SELECT 1 FROM z WHERE z.k = x.k AND z.v > 0)", "z.k = x.k", "z.v > 0"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
