package lang_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

func TestExplainTriage(t *testing.T) {
	g, err := triage().Compile()
	if err != nil {
		t.Fatal(err)
	}
	x, err := lang.Explain(g, lang.ExplainOptions{Inputs: lang.Args{"alert": "Pod web-1 is down"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + x.String())
	j, _ := json.MarshalIndent(x, "", " ")
	t.Log(string(j))
	_ = strings.Contains
}
