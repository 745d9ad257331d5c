package remote_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/remote"
)

// server is a stand-in for a model server.
func server() *httptest.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, `{"data":[{"id":"toy","owned_by":"vllm","max_model_len":4096}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		io.WriteString(w, `data: {"choices":[{"index":0,"delta":{"content":"Out of "}}]}

data: {"choices":[{"index":0,"delta":{"content":"memory."},"finish_reason":"stop"}]}

data: {"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":4,"prompt_tokens_details":{"cached_tokens":16}}}

data: [DONE]

`)
	})
	return httptest.NewServer(mux)
}

func Example() {
	srv := server()
	defer srv.Close()
	ctx := context.Background()

	be, err := remote.Open(ctx, srv.URL+"/v1", remote.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer be.Close()
	fmt.Println(be.Dialect(), be.Info().Model, be.Info().ContextLength)

	res, err := be.Generate(ctx, &backend.Request{
		Turns:     []backend.Turn{{Role: backend.User, Parts: []backend.Part{{Text: "Why did the pod die?"}}}},
		MaxTokens: 20,
	}, func(d backend.Delta) { fmt.Printf("%q\n", d.Text) })
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Part.Text, res.Finish, res.Usage.CachedTokens, "of", res.Usage.PromptTokens, "cached")
	// Output:
	// vllm toy 4096
	// "Out of "
	// "memory."
	// Out of memory. stop 16 of 30 cached
}

// A caller that retries by itself turns the retries here off.
func ExampleError() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		http.Error(w, `{"error":{"message":"too many requests"}}`, http.StatusTooManyRequests)
	}))
	defer srv.Close()

	_, err := remote.Open(context.Background(), srv.URL+"/v1", remote.Options{Retry: remote.Retry{Attempts: 1}})
	var e *remote.Error
	if errors.As(err, &e) && e.Retryable() {
		fmt.Println(e.Message, errors.Is(err, backend.ErrOverloaded), e.RetryAfter == 7*time.Second)
	}
	// Output: too many requests true true
}
