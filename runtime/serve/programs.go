package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// programInfo is a program as clients see it.
type programInfo struct {
	Name    string          `json:"name"`
	Object  string          `json:"object"`
	Doc     string          `json:"doc,omitempty"`
	Inputs  []programInput  `json:"inputs"`
	Output  string          `json:"output"`
	Hash    string          `json:"hash"`
	BuiltIn bool            `json:"built_in"`
	Graph   json.RawMessage `json:"graph,omitempty"`
}

type programInput struct {
	Name    string          `json:"name"`
	Type    string          `json:"type"`
	Default json.RawMessage `json:"default,omitempty"`
	Doc     string          `json:"doc,omitempty"`
}

// checkProgram reports what keeps a program from running here.
func (s *Server) checkProgram(ctx context.Context, p Program) error {
	if err := p.Graph.Link(p.Funcs); err != nil {
		return err
	}
	return runtime.CanRun(ctx, p.Graph, s.cfg.Backend)
}

// program finds a program of the tenant's, or one that is served to all.
func (s *Server) program(t *tenant, name string) (p Program, builtIn bool, err error) {
	t.mu.Lock()
	p, ok := t.programs[name]
	t.mu.Unlock()
	if ok {
		return p, false, nil
	}
	for _, p := range s.cfg.Programs {
		if p.Graph.Name == name {
			return p, true, nil
		}
	}
	return p, false, notFound("program_not_found", "there is no program %q", clip(name))
}

func describe(p Program, builtIn, whole bool) (programInfo, error) {
	g := p.Graph
	out := programInfo{Name: g.Name, Object: "program", Doc: g.Doc, Inputs: []programInput{}, Output: g.Output.String(), Hash: g.Hash(), BuiltIn: builtIn}
	for _, in := range g.Inputs {
		out.Inputs = append(out.Inputs, programInput{in.Name, in.Type.String(), in.Default, in.Doc})
	}
	var err error
	if whole {
		out.Graph, err = g.JSON()
	}
	return out, err
}

var programName = regexp.MustCompile(`^[a-zA-Z0-9_.\-]{1,128}$`)

// readProgram reads a graph in JSON or YAML.
func (s *Server) readProgram(ctx context.Context, data []byte) (Program, error) {
	g, err := lang.Decode(data, "program")
	if err != nil {
		return Program{}, err
	}
	if !programName.MatchString(g.Name) {
		return Program{}, badRequest("name", "the program's name is %q; it is to be 1 to 128 letters, digits, or any of _ . -", clip(g.Name))
	}
	p := Program{Graph: g, Funcs: s.cfg.Funcs}
	if err := s.checkProgram(ctx, p); err != nil {
		return p, badRequest("", "the program cannot run here: %v", err)
	}
	return p, nil
}

// changePrograms begins a change of the tenant's programs, of which there is one at
// a time. The tenant's lock is not held while files are written.
func (t *tenant) changePrograms(ctx context.Context) (done func(), err error) {
	select {
	case t.changing <- struct{}{}:
		return func() { <-t.changing }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// addProgram is POST /v1/programs; the body is the graph itself.
func (s *Server) addProgram(w http.ResponseWriter, r *http.Request) error {
	data, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	p, err := s.readProgram(r.Context(), data)
	if err != nil {
		return err
	}
	info, err := describe(p, false, false)
	if err != nil {
		return err
	}
	graph, err := p.Graph.JSON()
	if err != nil {
		return err
	}
	t := tenantOf(r.Context())
	done, err := t.changePrograms(r.Context())
	if err != nil {
		return err
	}
	defer done()
	t.mu.Lock()
	_, replaced := t.programs[info.Name]
	many := !replaced && len(t.programs) >= s.cfg.Limits.Programs
	full := t.full(len(graph) - t.sizes[info.Name])
	t.mu.Unlock()
	if !many && !full {
		if err = t.shelf.keepProgram(info.Name, graph); err == nil {
			t.mu.Lock()
			t.programs[info.Name] = p
			t.sizes[info.Name] = len(graph)
			t.mu.Unlock()
		}
	}
	switch {
	case full:
		return t.errFull()
	case err != nil:
		return s.notKept(err)
	case many:
		return &Error{Status: http.StatusTooManyRequests, Type: typeRate, Code: "too_many_programs", Message: fmt.Sprintf("%d programs are kept already; delete some", s.cfg.Limits.Programs)}
	case replaced:
		writeJSON(w, http.StatusOK, info)
	default:
		w.Header().Set("Location", "/v1/programs/"+info.Name)
		writeJSON(w, http.StatusCreated, info)
	}
	return nil
}

func (s *Server) listPrograms(w http.ResponseWriter, r *http.Request) error {
	t := tenantOf(r.Context())
	list := []programInfo{}
	t.mu.Lock()
	own := make([]Program, 0, len(t.programs))
	for _, p := range t.programs {
		own = append(own, p)
	}
	t.mu.Unlock()
	add := func(p Program, builtIn bool) error {
		if slices.ContainsFunc(list, func(i programInfo) bool { return i.Name == p.Graph.Name }) {
			return nil // the tenant's own of that name hides it
		}
		info, err := describe(p, builtIn, false)
		list = append(list, info)
		return err
	}
	for _, p := range own {
		if err := add(p, false); err != nil {
			return err
		}
	}
	for _, p := range s.cfg.Programs {
		if err := add(p, true); err != nil {
			return err
		}
	}
	slices.SortFunc(list, func(a, b programInfo) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	writeJSON(w, http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []programInfo `json:"data"`
	}{"list", list})
	return nil
}

func (s *Server) showProgram(w http.ResponseWriter, r *http.Request) error {
	p, builtIn, err := s.program(tenantOf(r.Context()), r.PathValue("name"))
	if err != nil {
		return err
	}
	info, err := describe(p, builtIn, true)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, info)
	return nil
}

func (s *Server) removeProgram(w http.ResponseWriter, r *http.Request) error {
	t, name := tenantOf(r.Context()), r.PathValue("name")
	done, err := t.changePrograms(r.Context())
	if err != nil {
		return err
	}
	defer done()
	t.mu.Lock()
	_, ok := t.programs[name]
	t.mu.Unlock()
	if ok {
		if err = t.shelf.dropProgram(name); err == nil {
			t.mu.Lock()
			delete(t.programs, name)
			delete(t.sizes, name)
			t.mu.Unlock()
		}
	}
	switch {
	case !ok:
		return notFound("program_not_found", "there is no program %q of yours", clip(name))
	case err != nil:
		return s.notKept(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
