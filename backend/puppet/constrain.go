package puppet

import (
	"fmt"
	"regexp"
	"slices"

	"github.com/coppice-run/coppice/backend"
)

// constrain checks that text is what the constraint of req allows. A script
// that breaks its constraint is a mistake of the test, so it fails with
// backend.ErrInvalid rather than being repaired.
func constrain(req *backend.Request, text string) (string, []bool, error) {
	c := req.Constraint
	switch {
	case len(c.Choices) > 0:
		if !slices.Contains(c.Choices, text) {
			return "", nil, fmt.Errorf("puppet: request %q: the scripted reply %q is none of the choices %q: %w", req.ID, text, c.Choices, backend.ErrInvalid)
		}
	case c.Regex != "":
		re, err := regexp.Compile(`^(?:` + c.Regex + `)$`)
		if err != nil {
			return "", nil, fmt.Errorf("puppet: request %q: %v: %w", req.ID, err, backend.ErrInvalid)
		}
		if !re.MatchString(text) {
			return "", nil, fmt.Errorf("puppet: request %q: the scripted reply %q does not match %q: %w", req.ID, text, c.Regex, backend.ErrInvalid)
		}
	}
	return text, nil, nil
}
