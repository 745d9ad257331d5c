package serve

import (
	"context"
	"maps"
	"net/http"
	"slices"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// uiMessage turns the events of a run into the chunks of one message of the
// Vercel AI SDK's UI message stream. What it returns depends on the events alone,
// in their order. A generated text is a text part, a call a dynamic tool; branches,
// nodes and selects are data parts that are replaced by their ids.
type uiMessage struct {
	uiTexts
	labels map[string]string // of branches
	asks   uiAsks
}

type uiChunk map[string]any

func newUIMessage(run string) *uiMessage {
	return &uiMessage{uiTexts: newUITexts(run), labels: map[string]string{}}
}

// take returns what an event becomes.
func (m *uiMessage) take(e runtime.Event) (out []uiChunk) {
	add := func(c uiChunk) { out = append(out, c) }
	text := func(e runtime.Event, s string, offset int) {
		t, piece, begins := m.add(e, s, offset)
		if begins {
			add(uiChunk{"type": "text-start", "id": t.id})
		}
		if piece != "" {
			add(uiChunk{"type": "text-delta", "id": t.id, "delta": piece})
		}
	}
	end := func(task string) {
		if t := m.end(task); t != nil {
			add(uiChunk{"type": "text-end", "id": t.id})
		}
	}
	node := func(status string, more uiChunk) {
		data := uiChunk{"task": e.Task, "branch": e.Branch, "does": e.Does, "status": status, "text": m.id(e.Task)}
		maps.Copy(data, more)
		add(uiChunk{"type": "data-node", "id": e.Task, "data": data})
	}
	tool := e.Does == string(lang.KindCall) || e.Does == string(lang.KindWait)
	m.asks.take(&e)
	switch e.Kind {
	case runtime.RunStarted:
		add(uiChunk{"type": "start", "messageId": m.run})
	case runtime.BranchStarted:
		m.labels[e.Branch] = e.Label
		add(uiChunk{"type": "data-branch", "id": e.Branch, "data": uiChunk{"id": e.Branch, "label": e.Label, "parent": m.begin(e.Branch), "status": string(runtime.Running)}})
	case runtime.BranchFinished:
		add(uiChunk{"type": "data-branch", "id": e.Branch, "data": uiChunk{"id": e.Branch, "label": m.labels[e.Branch], "parent": m.begin(e.Branch), "status": string(e.Status), "error": e.Error}})
	case runtime.NodeStarted:
		switch q := e.Ask; {
		case q != nil:
			node(runWaiting, uiChunk{"ask": q})
			add(uiChunk{"type": "tool-input-available", "toolCallId": m.id(e.Task), "toolName": e.Node, "input": q, "dynamic": true})
			if yesOrNo(q) {
				add(uiChunk{"type": "tool-approval-request", "approvalId": m.id(e.Task), "toolCallId": m.id(e.Task)})
			}
		case tool:
			node("running", nil)
			add(uiChunk{"type": "tool-input-available", "toolCallId": m.id(e.Task), "toolName": e.Node, "input": uiChunk{}, "dynamic": true, "providerExecuted": true})
		default:
			node("running", nil)
		}
	case runtime.TextDelta:
		text(e, e.Text, e.Offset)
		if len(e.Tokens) > 0 {
			add(uiChunk{"type": "data-token", "transient": true, "data": uiChunk{"task": e.Task, "tokens": e.Tokens, "forced": e.Forced, "offset": e.Offset}})
		}
	case runtime.Dropped:
		for _, task := range slices.Sorted(maps.Keys(e.Texts)) {
			text(runtime.Event{Task: task}, e.Texts[task], 0)
		}
	case runtime.NodeRetried:
		end(e.Task)
		m.tries[e.Task]++
		node("running", uiChunk{"retried": e.Error})
	case runtime.NodeFinished:
		switch {
		case e.Scores != nil:
			add(uiChunk{"type": "data-select", "id": e.Task, "data": uiChunk{"task": e.Task, "chosen": e.Text, "options": e.Finite().Scores}})
		case texts(e):
			text(e, e.Text, 0)
		case tool && e.Error != "":
			add(uiChunk{"type": "tool-output-error", "toolCallId": m.id(e.Task), "errorText": e.Error, "dynamic": true})
		case tool:
			add(uiChunk{"type": "tool-output-available", "toolCallId": m.id(e.Task), "output": e.Value, "dynamic": true})
		}
		end(e.Task)
		status := "finished"
		if e.Error != "" {
			status = "failed"
		}
		node(status, uiChunk{"cost": e.Cost, "error": e.Error})
	case runtime.NodeCancelled:
		end(e.Task)
		if tool {
			add(uiChunk{"type": "tool-output-error", "toolCallId": m.id(e.Task), "errorText": "cancelled", "dynamic": true})
		}
		node("cancelled", nil)
	case runtime.RunFinished, runtime.RunFailed:
		for _, task := range slices.Sorted(maps.Keys(m.open)) {
			end(task)
		}
		if e.Kind == runtime.RunFailed {
			add(uiChunk{"type": "error", "errorText": e.Error})
			break
		}
		add(uiChunk{"type": "data-result", "id": "result", "data": uiChunk{"value": e.Value}})
		add(uiChunk{"type": "finish", "messageMetadata": uiChunk{"usage": e.Usage, "run": m.run}})
	}
	return out
}

// interrupt ends the stream where tools wait for their approval or output. The
// client sends the message again when it has them.
func (m *uiMessage) interrupt() []uiChunk {
	return []uiChunk{{"type": "finish", "finishReason": "tool-calls", "messageMetadata": uiChunk{"run": m.run}}}
}

// again goes on with the same message, in a step of its own: a client looks for
// answers to send in the last one.
func (m *uiMessage) again() []uiChunk {
	return []uiChunk{{"type": "start", "messageId": m.run}, {"type": "start-step"}}
}

// broken ends the message with an error, but for a server that stops: then the end
// of the connection tells the client to come back for the rest.
func (m *uiMessage) broken(why *Error, stops bool) []uiChunk {
	if stops {
		return nil
	}
	return []uiChunk{{"type": "error", "errorText": why.Message}}
}

// runUIMessage is POST /v1/programs/{name}/chat: a run as the answer of a chat of
// the AI SDK, over HTTP. Its body is {id, messages}; "inputs" in it are the
// program's, without them the last message of the user is its one text. Messages
// that end with answers to what a run waits for go on with that run.
func (s *Server) runUIMessage(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	x, from, err := s.startChat(r.Context(), tenantOf(r.Context()), r.PathValue("name"), f)
	if err != nil {
		return err
	}
	w.Header().Set("X-Vercel-Ai-Ui-Message-Stream", "v1")
	return sendUI(s, w, r, x, from, newUIMessage(x.id))
}

// startChat starts the run that answers a chat, or goes on with one that waited for
// the client behind an event.
func (s *Server) startChat(ctx context.Context, t *tenant, program string, f *fields) (*run, uint64, error) {
	q := runRequest{attached: true, chat: f.text("id")}
	messages := f.raw("messages")
	if f.has("inputs") {
		q.inputs = readRun(ctx, f, t).inputs
	}
	if err := f.err(); err != nil {
		return nil, 0, err
	}
	if answers := t.toolAnswers(ctx, messages); len(answers) > 0 {
		return t.answered(ctx, program, answers)
	}
	var err error
	if q.program, q.builtIn, err = s.program(t, program); err != nil {
		return nil, 0, err
	}
	if q.inputs == nil {
		if q.inputs, err = inputsOf(q.program, messages); err != nil {
			return nil, 0, err
		}
	}
	q.salt = t.salt("", "")
	x, err := s.start(t, q)
	return x, 0, err
}
