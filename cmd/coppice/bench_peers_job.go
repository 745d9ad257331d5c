package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/coppice-run/coppice/backend/gguf"
	"github.com/coppice-run/coppice/backend/tokenizer"
)

// forkJob is the fork workload: a long system prompt, and rounds in which some
// branches look at it at once and a join reads what they found, as JSON. Round
// by round the conversation grows. Its texts are the same for every server.
type forkJob struct {
	name     string
	script   string // run instead
	prefix   string
	rounds   int
	branches int
	reply    int // tokens of a branch
	chat     bool
	schema   json.RawMessage
	context  int // that a server needs
}

var (
	forkServices = []string{"checkout", "search", "billing", "catalog", "session", "inventory", "mailer", "gateway"}
	forkSigns    = []string{"slow answers", "a growing queue", "refused connections", "restarts in a loop", "a full disk", "late replicas", "many retries", "lost heartbeats"}
	forkChecks   = []string{"the last release", "the pool of connections", "the memory of the node", "the certificates", "the lag of the replica", "the limits of the container", "the error budget", "the queue of the broker"}
	forkActions  = []string{"restart one instance", "roll back the release", "add two workers", "raise the limit", "move the traffic away", "page the owner", "drain the node", "wait for ten minutes"}
)

func pick(r *rand.Rand, list []string) string { return list[r.IntN(len(list))] }

// newForkJob makes the workload for a model file. It is nil if the model's
// context is too short.
func newForkJob(o *benchOptions, file string) (*forkJob, error) {
	f, err := gguf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	tok, err := tokenizer.FromGGUF(f)
	if err != nil {
		return nil, err
	}
	p := &o.peers
	tokens := o.speed.shared
	j := &forkJob{script: p.forkbench, rounds: p.rounds, branches: p.forks, reply: p.reply}
	j.name = fmt.Sprintf("%d rounds of %d branches over %d tokens and a join", j.rounds, j.branches, tokens)
	if j.script != "" {
		j.name = fmt.Sprintf("%d rounds of %d branches by script", j.rounds, j.branches)
		tokens = 3000
	}
	_, j.chat = f.String("tokenizer.chat_template")
	// What a round adds: question and answer of the join, with all texts in it.
	j.context = tokens + j.rounds*(j.branches*(j.reply+16)+128+128) + 512
	if have, ok := f.Uint(f.Architecture() + ".context_length"); ok && uint64(j.context) > have {
		return nil, nil
	}
	if j.schema, err = forkSchema(j.branches); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(6, 4))
	var b strings.Builder
	b.WriteString("Runbook of the platform. Answer from it alone.\n")
	for n := 1; len(tok.Encode(b.String(), false)) < tokens; n++ {
		for range 4 {
			fmt.Fprintf(&b, "%d. When %s shows %s, look at %s and at %s. ", n, pick(r, forkServices), pick(r, forkSigns), pick(r, forkChecks), pick(r, forkChecks))
			fmt.Fprintf(&b, "Above %d per second %s, otherwise %s. Never %s during a release.\n", 10+r.IntN(900), pick(r, forkActions), pick(r, forkActions), pick(r, forkActions))
			n++
		}
	}
	j.prefix = b.String()
	return j, nil
}

// question is the message of a branch.
func (j *forkJob) question(round, branch int) string {
	r := rand.New(rand.NewPCG(uint64(round), uint64(branch)))
	return fmt.Sprintf("Round %d, idea %d: %s has %s since %d:%02d while %s has %s. Somebody wants to %s. Which entry of the runbook fits, what is to be looked at next, and is the plan safe?",
		round+1, branch+1, pick(r, forkServices), pick(r, forkSigns), 1+r.IntN(12), r.IntN(60), pick(r, forkServices), pick(r, forkSigns), pick(r, forkActions))
}

// join is the message that reads the branches' texts.
func (j *forkJob) join(round int, texts []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "What round %d found:\n", round+1)
	for i, t := range texts {
		fmt.Fprintf(&b, "idea %d: %s\n", i+1, strings.TrimSpace(t))
	}
	b.WriteString("Decide, as JSON: the service at fault, how bad it is, the idea that explains most, whether to act now, the action, and a short reason.")
	return b.String()
}

// forkSchema is the schema of a join's answer.
func forkSchema(branches int) (json.RawMessage, error) {
	ideas := make([]string, branches)
	for i := range ideas {
		ideas[i] = fmt.Sprintf("idea-%d", i+1)
	}
	type object map[string]any
	// A list of pairs keeps the order of properties, which is that of the output.
	props := []struct {
		name   string
		schema object
	}{
		{"service", object{"type": "string", "enum": forkServices}},
		{"severity", object{"type": "string", "enum": []string{"low", "high", "critical"}}},
		{"idea", object{"type": "string", "enum": ideas}},
		{"act_now", object{"type": "boolean"}},
		{"action", object{"type": "string", "enum": forkActions}},
		{"reason", object{"type": "string", "minLength": 40, "maxLength": 80}},
	}
	var b strings.Builder
	b.WriteString(`{"type":"object","additionalProperties":false,"properties":{`)
	var names []string
	for i, p := range props {
		data, err := json.Marshal(p.schema)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", p.name, data)
		names = append(names, p.name)
	}
	data, err := json.Marshal(names)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `},"required":%s}`, data)
	return json.RawMessage(b.String()), nil
}
