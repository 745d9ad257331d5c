package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Spans go to the collector that is named, and nowhere if none is.
func TestTraces(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "")
	t.Setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "")
	if p, end, err := openTraces(t.Context(), "", log); p != nil || err != nil {
		t.Error(p, err)
	} else {
		end()
	}
	for _, bad := range []string{"collector:4318", "ftp://x", "://"} {
		if _, _, err := openTraces(t.Context(), bad, log); err == nil {
			t.Error(bad)
		}
	}
	got := make(chan []byte, 8)
	collector := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		if r.URL.Path == "/v1/traces" {
			got <- data
		}
	}))
	defer collector.Close()
	for _, flag := range []string{collector.URL, ""} {
		if flag == "" {
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
		}
		p, end, err := openTraces(t.Context(), flag, log)
		if err != nil {
			t.Fatal(err)
		}
		_, span := p.Tracer("test").Start(t.Context(), "chat some-model")
		span.End()
		end()
		if data := <-got; !bytes.Contains(data, []byte("chat some-model")) || !bytes.Contains(data, []byte("coppice")) {
			t.Errorf("%q", data)
		}
	}
	t.Setenv("OTEL_SDK_DISABLED", "true")
	if p, _, err := openTraces(t.Context(), "", log); p != nil || err != nil {
		t.Error(p, err)
	}
}
