package lang_test

import (
	"strings"
	"testing"

	"github.com/coppice-run/coppice/lang"
)

// TestCalcOfExpr: an Expr is source, as a string is, not a constant.
func TestCalcOfExpr(t *testing.T) {
	g, err := lang.Define("p", func(p *lang.Program) lang.Var[bool] {
		n := lang.In[int](p, "n")
		return lang.Calc[bool](n, lang.Expr(" > 1"))
	}).Compile()
	if err != nil {
		t.Fatal(err)
	}
	if data, err := g.YAML(); err != nil || !strings.Contains(string(data), "n > 1") {
		t.Errorf("%s (%v)", data, err)
	}
	_, err = lang.Define("p", func(p *lang.Program) lang.Var[bool] {
		return lang.Calc[bool](lang.Expr("nope > 1"))
	}).Compile()
	if err == nil || !strings.Contains(err.Error(), `reads "nope", which nothing sets`) {
		t.Error(err)
	}
}
