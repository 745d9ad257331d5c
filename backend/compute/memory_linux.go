package compute

import "golang.org/x/sys/unix"

// adviseHuge asks for huge pages. A refusal costs speed only.
func adviseHuge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
