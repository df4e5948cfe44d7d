package model_test

import (
	"strings"
	"testing"
	"time"

	"github.com/unavez/unavez/internal/model"
)

// at makes a delivery of one operation.
func at(from, to time.Duration, payload int, end, answer string, runs ...string) model.Delivery {
	return model.Delivery{Operation: "o", Payload: payload, Call: from, Return: to, End: end, Answer: answer, Runs: runs}
}

// leased makes it one of lease mode.
func leased(d model.Delivery) model.Delivery {
	d.Leased = true
	return d
}

func TestAHistoryIsHeldToARegisterThatIsWrittenOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		history []model.Delivery
		legal   bool
	}{
		"one runs, another gets its answer":             {[]model.Delivery{at(1, 3, 0, model.Ran, "a"), at(2, 4, 0, model.Replayed, "a")}, true},
		"two run":                                       {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 4, 0, model.Ran, "b")}, false},
		"two run at once":                               {[]model.Delivery{at(1, 4, 0, model.Ran, "a"), at(2, 3, 0, model.Ran, "b")}, false},
		"another answer":                                {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 4, 0, model.Replayed, "b")}, false},
		"an answer before it was made":                  {[]model.Delivery{at(1, 2, 0, model.Replayed, "a"), at(3, 4, 0, model.Ran, "a")}, false},
		"the answer for another payload":                {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 4, 1, model.Replayed, "a")}, false},
		"another payload":                               {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 4, 1, model.Mismatch, "")}, true},
		"a mismatch of nothing":                         {[]model.Delivery{at(1, 2, 1, model.Mismatch, ""), at(3, 4, 0, model.Ran, "a")}, false},
		"a mismatch with what runs":                     {[]model.Delivery{at(1, 4, 1, model.Failed, ""), at(2, 3, 0, model.Mismatch, "")}, true},
		"a mismatch with the same payload":              {[]model.Delivery{at(1, 4, 0, model.Ran, "a"), at(2, 3, 0, model.Mismatch, "")}, false},
		"in flight beside one that runs":                {[]model.Delivery{at(1, 4, 0, model.Ran, "a"), at(2, 3, 0, model.InFlight, "")}, true},
		"in flight beside nothing":                      {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 4, 0, model.InFlight, "")}, false},
		"in flight beside one that is looked up":        {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 6, 0, model.Replayed, "a"), at(4, 5, 0, model.InFlight, "")}, true},
		"failed, and then it runs":                      {[]model.Delivery{at(1, 2, 0, model.Failed, ""), at(3, 4, 0, model.Ran, "a")}, true},
		"the handler runs again behind an outcome":      {[]model.Delivery{at(1, 2, 0, model.Ran, "a"), at(3, 4, 0, model.Failed, "")}, false},
		"lost, and it had committed":                    {[]model.Delivery{at(1, 2, 0, model.Lost, "", "a"), at(3, 4, 0, model.Replayed, "a")}, true},
		"lost, and it had not":                          {[]model.Delivery{at(1, 2, 0, model.Lost, "", "a"), at(3, 4, 0, model.Ran, "b")}, true},
		"lost, and it commits later":                    {[]model.Delivery{at(1, 2, 0, model.Lost, "", "a"), at(3, 4, 0, model.InFlight, ""), at(5, 6, 0, model.Replayed, "a")}, true},
		"lost, and its answer is not among those made":  {[]model.Delivery{at(1, 2, 0, model.Lost, "", "a"), at(3, 4, 0, model.Replayed, "b")}, false},
		"lost, and both its commit and another's count": {[]model.Delivery{at(1, 2, 0, model.Lost, "", "a"), at(3, 4, 0, model.Ran, "b"), at(5, 6, 0, model.Replayed, "a")}, false},
		"silent, and the same payload runs":             {[]model.Delivery{leased(at(1, 2, 0, model.Silent, "")), leased(at(3, 4, 0, model.Ran, "a"))}, true},
		"silent, and another payload runs":              {[]model.Delivery{leased(at(1, 2, 0, model.Silent, "")), leased(at(3, 4, 1, model.Ran, "a"))}, false},
		"silent, and another payload is refused":        {[]model.Delivery{leased(at(1, 2, 0, model.Silent, "")), leased(at(3, 4, 1, model.Mismatch, ""))}, true},
		"silent, and the same payload is refused":       {[]model.Delivery{leased(at(1, 2, 0, model.Silent, "")), leased(at(3, 4, 0, model.Mismatch, ""))}, false},
		"silent, and the next says that nothing was":    {[]model.Delivery{leased(at(1, 2, 0, model.Silent, "")), leased(at(3, 4, 0, model.Failed, "")), leased(at(5, 6, 1, model.Ran, "a"))}, true},
		"an attempt that does not tell runs again":      {[]model.Delivery{leased(at(1, 2, 0, model.Ran, "a")), leased(at(3, 4, 0, model.Silent, ""))}, false},
		"lost in lease mode, and it had not told":       {[]model.Delivery{leased(at(1, 2, 0, model.Lost, "")), leased(at(3, 4, 1, model.Mismatch, ""))}, true},
	} {
		violations, err := model.Check(c.history, time.Minute)
		if err != nil || (len(violations) == 0) != c.legal {
			t.Errorf("%s: %q, %v; want legal %v", name, violations, err, c.legal)
		}
	}
}

func TestAViolationIsCutDownToWhatContradictsItself(t *testing.T) {
	t.Parallel()
	history := []model.Delivery{at(1, 2, 0, model.Ran, "a")}
	for i := range time.Duration(20) {
		history = append(history, at(3+2*i, 4+2*i, 0, model.Replayed, "a"))
		if i == 10 {
			history = append(history, at(3+2*i, 4+2*i, 0, model.Replayed, "b"))
		}
	}
	history = append(history, model.Delivery{Operation: "other", Call: 1, Return: 2, End: model.Ran, Answer: "z"})
	violations, err := model.Check(history, time.Minute)
	if err != nil || len(violations) != 1 || strings.Count(violations[0], "\n") != 2 || !strings.Contains(violations[0], "replayed b") {
		t.Errorf("%q, %v", violations, err)
	}
}
