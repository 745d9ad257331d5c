package serve

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/coppice-run/coppice/backend"
	"github.com/coppice-run/coppice/backend/puppet"
)

// Whatever a body says, the answer is a status and never a crash.
func FuzzBodies(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"role":"user","content":"x"}],"n":2,"stream":true}`,
		`{"messages":[{"role":"assistant","content":[{"type":"text","text":"x"}],"tool_calls":[{"function":{"name":"a","arguments":"{"}}]}],"tools":[{"type":"function","function":{"name":"a"}}],"tool_choice":"required"}`,
		`{"prompt":[[1,2],"a"],"echo":true,"logprobs":2,"max_tokens":0}`,
		`{"text":["a"],"sampling_params":{"regex":"[a-c]+","n":2,"stop":"b"},"return_logprob":true,"logprob_start_len":0}`,
		`{"messages":[{"role":"user","content":"x"}],"response_format":{"type":"json_schema","json_schema":{"schema":{"$ref":"#"}}}}`,
		`{"tokens":[1,2,3],"prompt":"x","inputs":{"topic":[]},"type":"start","program":"looks"}`,
	} {
		f.Add(s)
	}
	m := puppet.New()
	m.OnAny().Reply("a")
	srv, err := New(Config{Backend: m, Vocabulary: byteVocab{}})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { srv.Close() })
	f.Fuzz(func(t *testing.T, body string) {
		c := &client{t: t, srv: srv}
		for _, path := range []string{"/v1/chat/completions", "/v1/completions", "/generate", "/tokenize", "/detokenize", "/v1/programs", "/abort_request"} {
			if status := c.record("POST", path, body); status >= 500 || status < 200 {
				t.Errorf("%s: %d", path, status)
			}
		}
	})
}

func FuzzParseFields(f *testing.F) {
	f.Add([]byte(`{"a":{"b":[1,2,{"c":null}]},"a":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		x, err := parseFields(data)
		if err != nil {
			return
		}
		for name := range x.members {
			x.text(name)
			x.whole(name, 0, -5, 5)
			x.number(name, 0, -5, 5, false)
			x.object(name)
			x.texts(name, 3)
			x.flag(name, true)
			readIDs(x.raw(name))
		}
	})
}

func TestCountPasses(t *testing.T) {
	spans := []backend.Span{{Engine: 2, From: 5, To: 9}, {Engine: 1, From: 1, To: 3}, {Engine: 1, From: 2, To: 4}, {Engine: 2, From: 6, To: 7}, {Engine: 1, From: 9, To: 9}, {Engine: 1, From: 3, To: 2}}
	if n := countPasses(spans); n != 4+1+5 {
		t.Error(n)
	}
}

func TestDecodeHelper(t *testing.T) {
	if n := wholeCharacters([]byte("a\xf0\x9f")); n != 1 {
		t.Error(n)
	}
	if n := wholeCharacters([]byte("aé")); n != 3 {
		t.Error(n)
	}
	if n := wholeCharacters([]byte("a\x9f\x9f\x9f\x9f")); n != 5 {
		t.Error(n)
	}
}

// record calls the handler itself.
func (c *client) record(method, path, body string) int {
	w := httptest.NewRecorder()
	c.srv.ServeHTTP(w, httptest.NewRequest(method, path, stringReader(body)))
	if w.Code == 0 {
		return http.StatusOK
	}
	return w.Code
}
