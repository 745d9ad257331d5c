package open_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/coppice-run/coppice/backend/open"
)

func Example() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"data":[{"id":"toy"}]}`)
	}))
	defer srv.Close()

	url := "openai+http" + strings.TrimPrefix(srv.URL, "http") + "/v1?model=toy" // or engine:///path/model.gguf
	be, err := open.Backend(context.Background(), url, open.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	fmt.Println(be.Info().Model, be.Info().Capabilities.JSONSchema)
	// Output: toy true
}
