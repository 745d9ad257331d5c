package model

// shares are the panels of a section, in equal parts for the threads. A thread takes
// half of what is left of its part at a time: a long run of memory first, and little
// in the end, when others may have to wait for it or take it over.
type shares struct {
	panels, threads int
	per             int // tasks of a part
}

// leastShare is about the number of panels of the last tasks of a part.
const leastShare = 4

// maxShares bounds the tasks of a part.
const maxShares = 12

func (s *shares) divide(panels, threads int) {
	s.panels, s.threads, s.per = panels, threads, 1
	for n := panels / threads; n >= 2*leastShare && s.per < maxShares; n = (n + 1) / 2 {
		s.per++
	}
}

// tasks returns the number of tasks, as many of each part.
func (s *shares) tasks() int { return s.threads * s.per }

// task returns the panels of a task, of which there may be none.
func (s *shares) task(i int) (p0, p1 int) {
	part, k := i/s.per, i%s.per
	from, to := part*s.panels/s.threads, (part+1)*s.panels/s.threads
	p0, p1 = to-(to-from)>>k, to
	if k+1 < s.per {
		p1 = to - (to-from)>>(k+1)
	}
	return p0, p1
}
