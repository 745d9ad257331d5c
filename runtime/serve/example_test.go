package serve_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/coppice-run/coppice/backend/puppet"
	"github.com/coppice-run/coppice/runtime/serve"
)

func Example() {
	be := puppet.New() // any backend: see package open
	be.OnAny().Reply("The Glomma.")
	srv, err := serve.New(serve.Config{Backend: be})
	if err != nil {
		log.Fatal(err)
	}
	defer srv.Close()
	http := httptest.NewServer(srv)
	defer http.Close()

	fmt.Println(post(http.URL+"/v1/completions", `{"prompt": "A river: ", "max_tokens": 7}`))
	// Output: "The Glo" length
}

func post(url, body string) string {
	resp, err := http.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	data, _ := io.ReadAll(resp.Body)
	_, text, _ := strings.Cut(string(data), `"text":`)
	text, rest, _ := strings.Cut(text, ",")
	_, reason, _ := strings.Cut(rest, `"finish_reason":"`)
	reason, _, _ = strings.Cut(reason, `"`)
	return text + " " + reason
}
