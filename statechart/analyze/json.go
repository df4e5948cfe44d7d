package analyze

import (
	_ "embed" // the schema
	"encoding/json"
	"fmt"
	"io"
)

//go:embed report.schema.json
var schema []byte

// Schema is the JSON Schema (2020-12) of the JSON form of a [Report].
func Schema() []byte { return append([]byte(nil), schema...) }

// WriteJSON writes the report as [Schema] describes it.
func (r *Report) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

// ReadReport reads what [Report.WriteJSON] wrote, and refuses another version of
// the form.
func ReadReport(text []byte) (*Report, error) {
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("analyze: not a report: %w", err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("analyze: a report of format %d; this version reads %d: make it again from the chart", r.Format, Format)
	}
	for _, f := range r.Findings {
		if f.Rule == "SC000" {
			return nil, fmt.Errorf("analyze: the report is that of a text which is no chart: %s", f.Message)
		}
	}
	for _, e := range r.Events {
		if e.Again == nil {
			return nil, fmt.Errorf("analyze: not a report: %s lacks what a second delivery runs: make it again from the chart", e.Type)
		}
	}
	for _, c := range r.Cells {
		if c.Configuration < 0 || c.Configuration >= len(r.Configurations) {
			return nil, fmt.Errorf("analyze: not a report: no configuration %d", c.Configuration)
		}
	}
	return &r, nil
}
