package analyze

import (
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"path/filepath"
	"strings"
)

// The part of SARIF 2.1.0 that is written here.
type (
	sarifLog struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}
	sarifRun struct {
		Tool       sarifTool     `json:"tool"`
		ColumnKind string        `json:"columnKind"`
		Results    []sarifResult `json:"results"`
	}
	sarifTool struct {
		Driver sarifDriver `json:"driver"`
	}
	sarifDriver struct {
		Name           string      `json:"name"`
		Version        string      `json:"version,omitempty"`
		InformationURI string      `json:"informationUri"`
		Rules          []sarifRule `json:"rules"`
	}
	sarifRule struct {
		ID      string             `json:"id"`
		Name    string             `json:"name"`
		Short   sarifText          `json:"shortDescription"`
		Help    sarifText          `json:"help"`
		HelpURI string             `json:"helpUri"`
		Default sarifConfiguration `json:"defaultConfiguration"`
	}
	sarifConfiguration struct {
		Level Level `json:"level"`
	}
	sarifText struct {
		Text string `json:"text"`
	}
	sarifResult struct {
		RuleID       string             `json:"ruleId"`
		RuleIndex    int                `json:"ruleIndex"`
		Level        Level              `json:"level"`
		Message      sarifText          `json:"message"`
		Locations    []sarifLocation    `json:"locations"`
		CodeFlows    []sarifFlow        `json:"codeFlows,omitempty"`
		Fingerprints map[string]string  `json:"partialFingerprints"`
		Suppressions []sarifSuppression `json:"suppressions,omitempty"`
	}
	sarifSuppression struct {
		Kind          string `json:"kind"`
		Justification string `json:"justification"`
	}
	sarifFlow struct {
		ThreadFlows []sarifThreadFlow `json:"threadFlows"`
	}
	sarifThreadFlow struct {
		Locations []sarifStep `json:"locations"`
	}
	sarifStep struct {
		Location sarifLocation `json:"location"`
	}
	sarifLocation struct {
		Message  *sarifText     `json:"message,omitempty"`
		Physical sarifPhysical  `json:"physicalLocation"`
		Logical  []sarifLogical `json:"logicalLocations,omitempty"`
	}
	sarifLogical struct {
		Name string `json:"fullyQualifiedName"`
		Kind string `json:"kind"`
	}
	sarifPhysical struct {
		Artifact sarifArtifact `json:"artifactLocation"`
		Region   sarifRegion   `json:"region"`
	}
	sarifArtifact struct {
		URI string `json:"uri"`
	}
	sarifRegion struct {
		StartLine   int `json:"startLine"`
		StartColumn int `json:"startColumn"`
	}
)

// Help is where the rules are described.
const Help = "https://github.com/unavez/unavez/blob/main/docs/statecharts.md"

// fingerprintName is the version of how fingerprints are made.
const fingerprintName = "unavez/v1"

// WriteSARIF writes the findings as SARIF 2.1.0, for code scanning: positions in
// the chart's text, witnesses as code flows, fingerprints that survive moved
// lines. Version is that of the program. What the chart declares is written as
// suppressed in source.
func (r *Report) WriteSARIF(w io.Writer, version string) error {
	run := sarifRun{ColumnKind: "unicodeCodePoints", Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{Name: "unavez analyze", Version: version, InformationURI: Help}
	index := map[string]int{}
	for i, x := range Rules() {
		index[x.ID] = i
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{
			ID: x.ID, Name: x.Name, Short: sarifText{x.Short}, Help: sarifText{"Ways out: " + strings.Join(x.Ways, "; ") + "."},
			HelpURI: Help + "#" + strings.ToLower(x.ID), Default: sarifConfiguration{x.Level},
		})
	}
	for _, f := range r.Findings {
		result := sarifResult{
			RuleID: f.Rule, RuleIndex: index[f.Rule], Level: f.Level, Message: sarifText{f.Message},
			Locations:    []sarifLocation{r.location(f.Line, f.Column, "")},
			Fingerprints: map[string]string{fingerprintName: f.Fingerprint},
		}
		if f.State != "" {
			result.Locations[0].Logical = []sarifLogical{{Name: f.State, Kind: "state"}}
		}
		if f.Accepted {
			result.Suppressions = []sarifSuppression{{Kind: "inSource", Justification: "declared in \"duplicates\""}}
		}
		if f.Witness != nil {
			var steps []sarifStep
			for i, s := range f.Witness.Steps {
				text := fmt.Sprintf("%d. %s: %s to %s", i+1, s.Event, r.Configurations[s.From].Label, r.Configurations[s.To].Label)
				if i == len(f.Witness.Steps)-1 {
					text += ", a second time"
				}
				steps = append(steps, sarifStep{r.location(s.Line, s.Column, text)})
			}
			result.CodeFlows = []sarifFlow{{[]sarifThreadFlow{{steps}}}}
		}
		run.Results = append(run.Results, result)
	}
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(sarifLog{
		Schema:  "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
		Version: "2.1.0", Runs: []sarifRun{run},
	})
}

// uri of a file: relative as it is named, absolute with its scheme.
func uri(file string) string {
	path := filepath.ToSlash(file)
	if !filepath.IsAbs(file) {
		return (&url.URL{Path: path}).String()
	}
	if !strings.HasPrefix(path, "/") {
		path = "/" + path // a drive
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// location in the chart's file; what has no place of its own is at its start.
func (r *Report) location(line, column int, text string) sarifLocation {
	file := r.Chart.File
	if file == "" {
		file = "chart.json"
	}
	l := sarifLocation{Physical: sarifPhysical{
		Artifact: sarifArtifact{uri(file)},
		Region:   sarifRegion{max(line, 1), max(column, 1)},
	}}
	if text != "" {
		l.Message = &sarifText{text}
	}
	return l
}
