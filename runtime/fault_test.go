package runtime

import (
	"errors"
	"io"
	"io/fs"
	"sync"
)

// memFS is a file system in memory with faults.
type memFS struct {
	mu    sync.Mutex
	files map[string]*memData
	// fault is asked before each operation that changes a file; an error makes
	// it fail. For "write" it may also say how many bytes get through.
	fault func(op string) (int, error)
}

type memData struct {
	data   []byte // as the process sees it
	synced []byte // as it is after a power cut
	locked bool
}

func newMemFS() *memFS { return &memFS{files: map[string]*memData{}} }

func (m *memFS) ask(op string) (int, error) {
	if m.fault == nil {
		return 0, nil
	}
	return m.fault(op)
}

func (m *memFS) open(path string, create bool) (file, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, err := m.ask("open"); err != nil {
		return nil, err
	}
	d := m.files[path]
	if d == nil {
		if !create {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		d = &memData{}
		m.files[path] = d
	}
	if d.locked {
		return nil, ErrJournalLocked
	}
	d.locked = true
	return &memFile{m, d}, nil
}

func (m *memFS) syncDir(string) error {
	_, err := m.ask("syncdir")
	return err
}

type memFile struct {
	fs *memFS
	d  *memData
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if off >= int64(len(f.d.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.d.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	n, err := f.fs.ask("write")
	if err != nil {
		p = p[:min(n, len(p))]
	}
	if grow := int(off) + len(p) - len(f.d.data); grow > 0 {
		f.d.data = append(f.d.data, make([]byte, grow)...)
	}
	copy(f.d.data[off:], p)
	return len(p), err
}

func (f *memFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.fs.ask("truncate"); err != nil {
		return err
	}
	f.d.data = f.d.data[:size]
	return nil
}

func (f *memFile) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if _, err := f.fs.ask("sync"); err != nil {
		return err
	}
	f.d.synced = append([]byte(nil), f.d.data...)
	return nil
}

func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	f.d.locked = false
	return nil
}

func (f *memFile) Stat() (fs.FileInfo, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return memInfo{size: int64(len(f.d.data))}, nil
}

type memInfo struct {
	fs.FileInfo
	size int64
}

func (i memInfo) Size() int64 { return i.size }

var errDiskFull = errors.New("no space left on device")
