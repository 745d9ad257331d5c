package serve

import (
	"bytes"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/coppice-run/coppice/backend/engine"
	"github.com/coppice-run/coppice/cache"
)

// observed is a backend whose work can be looked at; our engine is one.
type observed interface {
	statser
	Passes(after uint64) []engine.Pass
	Tree(most, first int) (nodes []cache.NodeView, all int)
}

var errNotObserved = &Error{Status: http.StatusNotFound, Type: typeInvalid, Code: "not_observed", Message: "this backend does not show its work; the page can show it for a model that runs in this process"}

// passInfo is a forward pass as the page draws it. Times are microseconds since
// the server began.
type passInfo struct {
	Pass   uint64 `json:"pass"`
	Start  int64  `json:"start_us"`
	End    int64  `json:"end_us"`
	Rows   int    `json:"rows"`
	Prompt int    `json:"prompt"`
	Decode int    `json:"decode"`
}

type statsInfo struct {
	Steps     uint64 `json:"steps"`
	Computed  uint64 `json:"computed"`
	Cached    uint64 `json:"cached"`
	Forced    uint64 `json:"forced"`
	Sampled   uint64 `json:"sampled"`
	Preempted uint64 `json:"preempted"`
	Running   int    `json:"running"`
	Waiting   int    `json:"waiting"`
	Pages     int    `json:"pages"`
	Free      int    `json:"free"`
	Held      int    `json:"held"`
	Evictable int    `json:"evictable"`
	Nodes     int    `json:"nodes"`
}

// engineWork is GET /v1/engine: what the engine holds, and its passes after the
// one that ?after names.
func (s *Server) engineWork(w http.ResponseWriter, r *http.Request) error {
	if !tenantOf(r.Context()).sees {
		return errNotOperator
	}
	be, ok := s.be.(observed)
	if !ok {
		return errNotObserved
	}
	after := uint64(0)
	if q := r.URL.Query().Get("after"); q != "" {
		var err error
		if after, err = strconv.ParseUint(q, 10, 63); err != nil {
			return badRequest("after", "%q is no number of a pass", clip(q))
		}
	}
	passes := []passInfo{}
	for _, p := range be.Passes(after) {
		passes = append(passes, passInfo{p.Number, p.Start.Sub(s.started).Microseconds(), p.End.Sub(s.started).Microseconds(), p.Sequences, p.Prompt, p.Generated})
	}
	st := be.Stats()
	writeJSON(w, http.StatusOK, struct {
		Now        int64      `json:"now_us"`
		PageTokens int        `json:"page_tokens"`
		Stats      statsInfo  `json:"stats"`
		Passes     []passInfo `json:"passes"`
	}{
		time.Since(s.started).Microseconds(), cache.PageTokens,
		statsInfo{
			st.Steps, st.Computed, st.Cached, st.Forced, st.Sampled, st.Preempted,
			st.Running, st.Waiting, st.Pages, st.Free, st.Held, st.Evictable, st.CachedNodes,
		},
		passes,
	})
	return nil
}

// What the page is shown of the cache.
const (
	treeNodes  = 1000
	treeTokens = 48 // of each node, as text
)

// cacheNode is a node of the cache as the page draws it.
type cacheNode struct {
	ID     int    `json:"id"`
	Parent int    `json:"parent"`
	Start  int    `json:"start"`
	Tokens int    `json:"tokens"`
	Pages  int    `json:"pages"`
	Pinned bool   `json:"pinned"`
	Text   string `json:"text,omitempty"`
}

// engineCache is GET /v1/engine/cache. It shows what everybody asked, so with
// keys it is for operators alone.
func (s *Server) engineCache(w http.ResponseWriter, r *http.Request) error {
	if !tenantOf(r.Context()).flush {
		return errNotOperator
	}
	be, ok := s.be.(observed)
	if !ok {
		return errNotObserved
	}
	tree, all := be.Tree(treeNodes, treeTokens)
	nodes := make([]cacheNode, len(tree))
	for i, n := range tree {
		nodes[i] = cacheNode{n.ID, n.Parent, n.Start, n.Tokens, n.Pages, n.Pinned, s.glimpse(n)}
	}
	writeJSON(w, http.StatusOK, struct {
		All   int         `json:"all"`
		Nodes []cacheNode `json:"nodes"`
	}{all, nodes})
	return nil
}

// glimpse is the beginning of a node's text.
func (s *Server) glimpse(n cache.NodeView) string {
	v := s.cfg.Vocabulary
	if v == nil {
		return ""
	}
	var b bytes.Buffer
	for _, id := range n.First {
		if v.IsControl(id) {
			b.WriteString(v.Text(id))
		} else {
			b.Write(v.Bytes(id))
		}
	}
	if n.Tokens > len(n.First) {
		b.WriteString("…")
	}
	return strings.ToValidUTF8(b.String(), "\ufffd")
}
