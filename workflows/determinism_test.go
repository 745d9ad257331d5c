package workflows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"testing"
)

// TestWorkflowCodeIsDeterministic looks for what workflow code must not do.
func TestWorkflowCodeIsDeterministic(t *testing.T) {
	forbidden := map[string]map[string]bool{
		"time": {"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "NewTimer": true, "NewTicker": true, "Tick": true},
		"rand": nil, "os": nil, "net": nil, "http": nil, // all of it
	}
	maps := map[string]bool{"flight": true, "marks": true} // fields of driver
	for _, file := range []string{"workflow.go", "execute.go", "people.go", "tree.go", "child.go", "history.go", "input.go", "foresee.go"} {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt, *ast.SelectStmt, *ast.ChanType, *ast.SendStmt:
				t.Errorf("%s: goroutines and channels of Go in workflow code", fset.Position(n.Pos()))
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok {
					if names, bad := forbidden[x.Name]; bad && (names == nil || names[n.Sel.Name]) {
						t.Errorf("%s: %s.%s in workflow code", fset.Position(n.Pos()), x.Name, n.Sel.Name)
					}
				}
			case *ast.RangeStmt:
				if x, ok := n.X.(*ast.SelectorExpr); ok && maps[x.Sel.Name] {
					t.Errorf("%s: the order of a map in workflow code", fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}
