package serve

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"

	"github.com/coppice-run/coppice/lang"
	"github.com/coppice-run/coppice/runtime"
)

// agui turns the events of a run into those of AG-UI 1.0. What it returns depends
// on the events alone, in their order. A branch is a subagent, a node a step, a
// generated text a message, the shares of a select an activity, a call a tool
// call, what waits for an answer an interrupt.
type agui struct {
	thread, run string
	uiTexts
	steps map[string]string // open ones, to their branches
	asks  uiAsks
	open  []aguiEvent // the SUBAGENT_STARTED of branches that are not over
}

// aguiEvent is an event as JSON.
type aguiEvent map[string]any

func newAGUI(thread, run string) *agui {
	return &agui{thread: thread, run: run, uiTexts: newUITexts(run), steps: map[string]string{}}
}

// take returns what an event becomes.
func (a *agui) take(e runtime.Event) (out []aguiEvent) {
	add := func(branch, kind string, fields aguiEvent) {
		fields["type"] = kind
		if branch != "" {
			fields["subagentRunId"] = branch
		}
		if !e.Time.IsZero() {
			fields["timestamp"] = e.Time.UnixMilli()
		}
		out = append(out, fields)
	}
	text := func(e runtime.Event, s string, offset int) {
		t, piece, begins := a.add(e, s, offset)
		if begins {
			add(t.branch, "TEXT_MESSAGE_START", aguiEvent{"messageId": t.id, "role": "assistant", "name": e.Task})
		}
		if piece != "" {
			add(t.branch, "TEXT_MESSAGE_CONTENT", aguiEvent{"messageId": t.id, "delta": piece})
		}
	}
	end := func(task string) {
		if t := a.end(task); t != nil {
			add(t.branch, "TEXT_MESSAGE_END", aguiEvent{"messageId": t.id})
		}
	}
	finish := func(task string) {
		end(task)
		if branch, ok := a.steps[task]; ok {
			delete(a.steps, task)
			add(branch, "STEP_FINISHED", aguiEvent{"stepName": task})
		}
	}
	a.asks.take(&e)
	switch e.Kind {
	case runtime.RunStarted:
		add("", "RUN_STARTED", aguiEvent{"threadId": a.thread, "runId": a.run})
	case runtime.BranchStarted:
		fields := aguiEvent{"name": e.Label}
		if e.Label == "" {
			fields["name"] = e.Branch
		}
		if parent := a.begin(e.Branch); parent != "" {
			fields["parentSubagentRunId"] = parent
		}
		add(e.Branch, "SUBAGENT_STARTED", fields)
		a.open = append(a.open, fields)
	case runtime.BranchFinished:
		for _, task := range slices.Sorted(maps.Keys(a.steps)) {
			if a.steps[task] == e.Branch {
				finish(task)
			}
		}
		a.open = slices.DeleteFunc(a.open, func(x aguiEvent) bool { return x["subagentRunId"] == e.Branch })
		if e.Status == runtime.Finished {
			add(e.Branch, "SUBAGENT_FINISHED", aguiEvent{"outcome": aguiEvent{"type": "success"}})
			break
		}
		fields := aguiEvent{"message": e.Error, "code": string(e.Status)}
		if e.Error == "" {
			fields["message"] = "the branch was " + string(e.Status)
		}
		add(e.Branch, "SUBAGENT_ERROR", fields)
	case runtime.NodeStarted:
		if _, open := a.steps[e.Task]; open {
			break // once more; it is the same step
		}
		a.steps[e.Task] = e.Branch
		add(e.Branch, "STEP_STARTED", aguiEvent{"stepName": e.Task})
	case runtime.TextDelta:
		text(e, e.Text, e.Offset)
	case runtime.Dropped:
		for _, task := range slices.Sorted(maps.Keys(e.Texts)) {
			text(runtime.Event{Task: task, Branch: a.steps[task]}, e.Texts[task], 0)
		}
	case runtime.NodeRetried:
		end(e.Task)
		a.tries[e.Task]++
		add(e.Branch, "CUSTOM", aguiEvent{"name": "coppice.retry", "value": aguiEvent{"task": e.Task, "attempt": e.Attempt, "error": e.Error}})
	case runtime.NodeRefused:
		add(e.Branch, "CUSTOM", aguiEvent{"name": "coppice.refused", "value": aguiEvent{"task": e.Task, "error": e.Error}})
	case runtime.NodeFinished:
		id := a.id(e.Task)
		switch {
		case e.Scores != nil:
			add(e.Branch, "ACTIVITY_SNAPSHOT", aguiEvent{"messageId": id, "activityType": "select", "content": aguiEvent{"task": e.Task, "chosen": e.Text, "options": e.Finite().Scores}})
		case texts(e):
			text(e, e.Text, 0)
		case e.Does == string(lang.KindCall):
			add(e.Branch, "TOOL_CALL_START", aguiEvent{"toolCallId": id, "toolCallName": e.Node})
			add("", "TOOL_CALL_END", aguiEvent{"toolCallId": id})
			result := string(e.Value)
			if e.Error != "" {
				result = e.Error
			}
			add(e.Branch, "TOOL_CALL_RESULT", aguiEvent{"messageId": id + ":result", "toolCallId": id, "content": result, "role": "tool"})
		}
		if e.Error != "" {
			add(e.Branch, "CUSTOM", aguiEvent{"name": "coppice.error", "value": aguiEvent{"task": e.Task, "error": e.Error}})
		} else if e.Does == string(lang.KindWait) {
			add(e.Branch, "CUSTOM", aguiEvent{"name": "coppice.answer", "value": aguiEvent{"task": e.Task, "answer": e.Value}})
		}
		finish(e.Task)
	case runtime.NodeCancelled:
		finish(e.Task)
	case runtime.RunFinished, runtime.RunFailed:
		for _, task := range slices.Sorted(maps.Keys(a.steps)) {
			finish(task)
		}
		if e.Status == runtime.Cancelled {
			for _, b := range slices.Backward(a.open) {
				add(b["subagentRunId"].(string), "SUBAGENT_ERROR", aguiEvent{"message": "the branch was cancelled", "code": string(e.Status)})
			}
			add("", "RUN_FINISHED", aguiEvent{"threadId": a.thread, "runId": a.run, "outcome": aguiEvent{"type": "cancelled"}})
			break
		}
		if e.Kind == runtime.RunFailed {
			add("", "RUN_ERROR", aguiEvent{"message": e.Error})
			break
		}
		fields := aguiEvent{"threadId": a.thread, "runId": a.run, "outcome": aguiEvent{"type": "success"}}
		if len(e.Value) > 0 && string(e.Value) != "null" {
			fields["result"] = e.Value
		}
		if u := e.Usage; u != nil {
			fields["usage"] = []aguiEvent{{
				"inputTokens": u.PromptTokens, "outputTokens": u.ForcedTokens + u.SampledTokens, "cachedInputTokens": u.CachedTokens,
			}}
		}
		add("", "RUN_FINISHED", fields)
	}
	return out
}

// interrupt ends the stream: steps end, branches are suspended, and the run has
// the open questions as its interrupts.
func (a *agui) interrupt() (out []aguiEvent) {
	for _, task := range slices.Sorted(maps.Keys(a.steps)) {
		e := aguiEvent{"type": "STEP_FINISHED", "stepName": task}
		if b := a.steps[task]; b != "" {
			e["subagentRunId"] = b
		}
		out = append(out, e)
	}
	clear(a.steps)
	of := map[any][]string{} // interrupts by branch
	var list []aguiEvent
	for _, x := range a.asks.list {
		q := x.Ask
		i := aguiEvent{
			"id": a.asks.id(x.Task), "reason": "input", "message": q.Text, "responseSchema": q.Schema,
			"metadata": aguiEvent{"task": x.Task, "type": q.Type, "default": q.Default},
		}
		if yesOrNo(q) {
			i["reason"] = "approval"
		}
		if !q.Due.IsZero() {
			i["expiresAt"] = q.Due
		}
		if x.Branch != "" {
			i["subagentRunId"] = x.Branch
			of[x.Branch] = append(of[x.Branch], a.asks.id(x.Task))
		}
		list = append(list, i)
	}
	for _, b := range slices.Backward(a.open) {
		how := aguiEvent{"type": "suspended"}
		if ids := of[b["subagentRunId"]]; ids != nil {
			how["interruptIds"] = ids
		}
		out = append(out, aguiEvent{"type": "SUBAGENT_FINISHED", "subagentRunId": b["subagentRunId"], "outcome": how})
	}
	return append(out, aguiEvent{"type": "RUN_FINISHED", "threadId": a.thread, "runId": a.run, "outcome": aguiEvent{"type": "interrupt", "interrupts": list}})
}

// again begins a stream behind an interrupt: a run of its own, in which the
// suspended branches go on.
func (a *agui) again() []aguiEvent {
	clear(a.steps)
	return append([]aguiEvent{{"type": "RUN_STARTED", "threadId": a.thread, "runId": a.run}}, a.open...)
}

// broken ends the stream with an error. A client cannot come back for the rest.
func (a *agui) broken(why *Error, _ bool) []aguiEvent {
	return []aguiEvent{{"type": "RUN_ERROR", "message": why.Message, "code": why.Code}}
}

// runAGUI is POST /v1/programs/{name}/agui: it starts a run as an AG-UI agent and
// streams it. The inputs are forwardedProps.inputs; without them the last message
// of the user is the program's one text. With "resume" it answers what an earlier
// run waits for, and streams the rest of that.
func (s *Server) runAGUI(w http.ResponseWriter, r *http.Request) error {
	f, err := s.readFields(w, r)
	if err != nil {
		return err
	}
	t := tenantOf(r.Context())
	thread, id := f.text("threadId"), f.text("runId")
	messages := f.raw("messages")
	forwarded := f.object("forwardedProps")
	resume := responses(f)
	if err := f.err(); err != nil {
		return err
	}
	if len(resume) > 0 {
		x, from, err := t.answered(r.Context(), r.PathValue("name"), resume)
		if err != nil {
			return err
		}
		return sendUI(s, w, r, x, from, newAGUI(thread, id))
	}
	var q runRequest
	if q.program, q.builtIn, err = s.program(t, r.PathValue("name")); err != nil {
		return err
	}
	q.salt, q.attached = t.salt("", ""), true
	if forwarded != nil && forwarded.has("inputs") {
		q.inputs = readRun(r.Context(), forwarded, t).inputs
		if err := forwarded.err(); err != nil {
			return err
		}
	} else if q.inputs, err = inputsOf(q.program, messages); err != nil {
		return err
	}
	x, err := s.start(t, q)
	if err != nil {
		return err
	}
	return sendUI(s, w, r, x, 0, newAGUI(thread, id))
}

// inputsOf makes the last text of a user the one text input of a program.
func inputsOf(p Program, messages json.RawMessage) (lang.Args, error) {
	var list []struct {
		Role    string
		Content json.RawMessage
		Parts   []struct{ Type, Text string }
	}
	if len(messages) > 0 && json.Unmarshal(messages, &list) != nil {
		return nil, badRequest("messages", "messages is to be a list of messages")
	}
	name := ""
	for _, in := range p.Graph.Inputs {
		switch {
		case in.Type.Kind != lang.TypeString && in.Default != nil:
		case in.Type.Kind == lang.TypeString && name == "":
			name = in.Name
		case in.Default == nil:
			return nil, badRequest("messages", "program %s needs more than one text: give its inputs by name", p.Graph.Name)
		}
	}
	args := lang.Args{}
	for _, m := range slices.Backward(list) {
		if m.Role != "user" || name == "" {
			continue
		}
		var text string
		parts := m.Parts
		if json.Unmarshal(m.Content, &text) != nil {
			json.Unmarshal(m.Content, &parts) // what is neither has no text
		}
		for _, part := range parts {
			if part.Type == "text" {
				text += part.Text
			}
		}
		args[name] = text
		break
	}
	return args, nil
}
