package analyze

import (
	"fmt"
	"io"

	"github.com/unavez/unavez/statechart"
	"github.com/unavez/unavez/statechart/draw"
)

// Draw gives the options of a picture that says at each transition what a
// duplicate of its event does, and draws the way of the gravest finding thick.
// Active are the ids of the active states, none for the chart as such.
func (r *Report) Draw(active []string) *draw.Options {
	lit := map[string]bool{}
	caption := ""
	for _, f := range r.Findings {
		if f.Witness != nil && !f.Accepted {
			for _, s := range f.Witness.Steps {
				lit[s.Pointer] = true
			}
			caption = "Marked: " + r.path(f.Witness)
			break
		}
	}
	return &draw.Options{
		Active: active, Caption: caption,
		MarkFunc: func(t *statechart.Transition) (draw.Mark, bool) {
			c, ok := r.Mark(t)
			if !ok {
				return draw.Mark{}, false
			}
			return picture(c), true
		},
		HighlightFunc: func(t *statechart.Transition) bool { return lit[t.At.Pointer] },
	}
}

// picture gives the mark of a class.
func picture(c Class) draw.Mark {
	m := draw.Mark{Word: c.Word()}
	switch c {
	case Terminal:
		m.Shape, m.Help = draw.Square, "the process ends; a duplicate finds nothing"
	case Protected:
		m.Shape, m.Help = draw.Ring, "no way leads to where a duplicate could act"
	case ProtectedByData:
		m.Shape, m.Help = draw.Diamond, "a guard knows the event and lets no duplicate pass"
	case ProtectedUntilCycle:
		m.Shape, m.Help = draw.Half, "a duplicate is harmless until some way leads back"
	case Exposed:
		m.Shape, m.Help, m.Strong = draw.Disc, "the very next delivery acts again", true
	default:
		m.Shape, m.Help = draw.Question, "the budget ended the search"
	}
	return m
}

// WriteSVG draws the chart with what was found; see package draw.
func (r *Report) WriteSVG(w io.Writer, d *statechart.Definition, active []string) error {
	if _, err := w.Write(draw.SVG(d, r.Draw(active))); err != nil {
		return fmt.Errorf("analyze: write the picture: %w", err)
	}
	return nil
}
