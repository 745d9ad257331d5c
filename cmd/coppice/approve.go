package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/user"
	"time"

	"github.com/spf13/cobra"

	"github.com/coppice-run/coppice/runtime"
	"github.com/coppice-run/coppice/workflows"
)

// pending is a task that waits for a person.
type pending struct {
	Task    string    `json:"task"`
	Ask     string    `json:"ask"`
	Type    string    `json:"type"`
	Due     time.Time `json:"due,omitzero"`
	Unknown bool      `json:"unknown,omitempty"` // it is a call of unknown outcome
}

func (a *app) approveCmd() *cobra.Command {
	var (
		t      temporalFlags
		asJSON bool
		no     bool
		again  bool
		result string
		early  bool
	)
	c := &cobra.Command{
		Use:   "approve RUN [TASK [ANSWER]]",
		Short: "Answer a run that waits for a person",
		Long: `Answer a run that waits for a person. RUN is the name of a durable run, or the
file of a journal. Without TASK it lists what the run waits for. ANSWER is JSON,
or plain text where the task wants a text; without it the answer is yes (true).

A call that must not be made twice and whose outcome is unknown waits too: look
whether it happened, then give --result with what it returned, or --again.`,
		Example: `  coppice approve nightly-0412
  coppice approve nightly-0412 approved
  coppice approve run.journal approved --no
  coppice approve nightly-0412 page --result '"sent"'`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) < 1 || len(args) > 3 {
				return usagef("coppice approve takes RUN, TASK and ANSWER, got %d arguments; see coppice approve --help", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			settles := again || cmd.Flags().Changed("result")
			answer := json.RawMessage("true")
			switch {
			case no && len(args) == 3, settles && (no || len(args) == 3):
				return usagef("give one of ANSWER, --no, --result and --again")
			case again && cmd.Flags().Changed("result"):
				return usagef("give --result or --again")
			case cmd.Flags().Changed("result") && !json.Valid([]byte(result)):
				return usagef("--result %q is not JSON: a text needs quotes of its own, as in --result '\"done\"'", result)
			case no:
				answer = json.RawMessage("false")
			case len(args) == 3:
				if answer = json.RawMessage(args[2]); !json.Valid(answer) {
					text, err := json.Marshal(args[2])
					if err != nil {
						return err
					}
					answer = text
				}
			}
			by := ""
			if u, err := user.Current(); err == nil {
				by = u.Username
			}
			if isJournal(args[0]) {
				return a.approveJournal(args, answer, by, settles, runtime.Settlement{Result: rawOrNil(result), Again: again}, asJSON)
			}
			s, err := t.open(cmd.Context())
			if err != nil {
				return err
			}
			defer s.Close()
			r := workflows.Open(s.Client, args[0])
			switch {
			case len(args) == 1:
				return a.listPending(cmd.Context(), r, asJSON)
			case settles:
				return r.Settle(cmd.Context(), workflows.Settlement{Task: args[1], Result: rawOrNil(result), Again: again, By: by})
			case early:
				return r.Leave(cmd.Context(), workflows.Answer{Task: args[1], Value: answer, By: by})
			}
			return r.Answer(cmd.Context(), workflows.Answer{Task: args[1], Value: answer, By: by})
		},
	}
	t.register(c)
	c.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	c.Flags().BoolVar(&no, "no", false, "the answer is no (false)")
	c.Flags().BoolVar(&early, "early", false, "leave the answer for a task that may not wait yet")
	c.Flags().StringVar(&result, "result", "", "of a call of unknown outcome: it happened and returned this JSON value")
	c.Flags().BoolVar(&again, "again", false, "of a call of unknown outcome: it did not happen, make it")
	return c
}

func rawOrNil(s string) json.RawMessage {
	if s == "" {
		return nil
	}
	return json.RawMessage(s)
}

func (a *app) listPending(ctx context.Context, r *workflows.Run, asJSON bool) error {
	tree, err := r.Tree(ctx)
	if err != nil {
		return err
	}
	var list []pending
	for _, t := range tree.Tasks {
		if t.Type != "" {
			list = append(list, pending{Task: t.Task, Ask: t.Ask, Type: t.Type, Due: t.Due})
		}
	}
	for _, u := range tree.Unknown {
		list = append(list, pending{Task: u.Task, Ask: fmt.Sprintf("did the call of %s with key %s happen?", u.Func, u.Key), Unknown: true})
	}
	for _, x := range tree.Trouble {
		fmt.Fprintf(a.errOut, "%s: %s\n", oneLine(x.Task), oneLine(x.Message))
	}
	return a.printPending(list, asJSON)
}

func (a *app) printPending(list []pending, asJSON bool) error {
	if asJSON {
		if list == nil {
			list = []pending{}
		}
		return a.printJSON(list)
	}
	if len(list) == 0 {
		fmt.Fprintln(a.out, "nothing waits for a person")
	}
	for _, p := range list {
		switch {
		case p.Unknown:
			fmt.Fprintf(a.out, "%s: unknown outcome: %s\n", oneLine(p.Task), indented(p.Ask))
		case p.Due.IsZero():
			fmt.Fprintf(a.out, "%s (%s): %s\n", oneLine(p.Task), p.Type, indented(p.Ask))
		default:
			fmt.Fprintf(a.out, "%s (%s, until %s): %s\n", oneLine(p.Task), p.Type, p.Due.Local().Format("2006-01-02 15:04:05"), indented(p.Ask))
		}
	}
	return nil
}

// approveJournal answers a run that is kept in a journal.
func (a *app) approveJournal(args []string, answer json.RawMessage, by string, settles bool, s runtime.Settlement, asJSON bool) error {
	if settles {
		if len(args) < 2 {
			return usagef("say which task: coppice approve %s TASK", args[0])
		}
		return runtime.Settle(args[0], args[1], s)
	}
	if len(args) > 1 {
		err := runtime.LeaveAnswer(args[0], args[1], answer, by)
		if errors.Is(err, runtime.ErrUnknownTask) {
			return usageError{err}
		}
		return err
	}
	waits, err := runtime.Waiting(args[0])
	if err != nil {
		return err
	}
	var list []pending
	for _, w := range waits {
		list = append(list, pending{Task: w.Task, Ask: w.Wait.Ask, Type: w.Wait.Type.String(), Due: w.Due})
	}
	return a.printPending(list, asJSON)
}
