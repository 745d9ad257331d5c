package workflows

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// ErrMissing: a store does not have what a hash names, or what it has under
// that name is damaged.
var ErrMissing = errors.New("not in the store")

// Store keeps what is too large for a workflow's history, under the hash of its
// content. All workers and clients of one run use the same store. Nothing is
// changed once it is there, so a store needs no locks between processes. It is
// safe for concurrent use.
type Store interface {
	// Put keeps data and returns its hash. When it returns, the data survives
	// the process; a loss of power too unless cache is set, for data that can be
	// made again.
	Put(data []byte, cache bool) (hash string, err error)
	// Get returns what Put was given, or an error that is ErrMissing.
	Get(hash string) ([]byte, error)
}

// Near returns far with a cache before it that is quicker to read, such as a folder
// of this machine before a store over the network. The cache may lose what it has.
func Near(far, cache Store) Store { return near{far, cache} }

type near struct{ far, cache Store }

func (s near) Put(data []byte, cache bool) (string, error) {
	hash, err := s.far.Put(data, cache)
	if err == nil {
		_, _ = s.cache.Put(data, true) // it is only slower without
	}
	return hash, err
}

func (s near) Get(hash string) ([]byte, error) {
	if data, err := s.cache.Get(hash); err == nil {
		return data, nil
	}
	data, err := s.far.Get(hash)
	if err == nil {
		_, _ = s.cache.Put(data, true)
	}
	return data, err
}

// Hash names data in a store: its SHA-256 in hexadecimal digits.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Dir is a Store in a folder: one file for each piece of data.
type Dir struct {
	path    string
	folders sync.Map // those of hashes whose names are durable
	sync    func(*os.File) error
}

// OpenDir returns the store in a folder, which is made if it is not there.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("workflows: the store cannot be made: %w", err)
	}
	return &Dir{path: path, sync: (*os.File).Sync}, nil
}

func (d *Dir) file(hash string) string { return filepath.Join(d.path, hash[:2], hash[2:]) }

// Put implements Store. A file is complete before it has its name.
func (d *Dir) Put(data []byte, cache bool) (string, error) {
	hash := Hash(data)
	name := d.file(hash)
	st, err := os.Stat(name)
	switch {
	case err != nil || st.Size() != int64(len(data)):
		err = d.write(name, data, !cache)
	case !cache: // it may have come as a cache
		err = d.syncFile(name)
	}
	if err == nil && !cache {
		err = d.syncNames(hash)
	}
	if err != nil {
		return "", fmt.Errorf("workflows: storing %d bytes: %w", len(data), err)
	}
	return hash, nil
}

// syncNames makes the name of a file durable, and that of its folder.
func (d *Dir) syncNames(hash string) error {
	if err := d.syncDir(filepath.Dir(d.file(hash))); err != nil {
		return err
	}
	if _, done := d.folders.Load(hash[:2]); done {
		return nil
	}
	err := d.syncDir(d.path)
	if err == nil {
		d.folders.Store(hash[:2], true)
	}
	return err
}

func (d *Dir) syncFile(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = d.sync(f)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// syncDir makes the entries of a folder durable, where the system can.
func (d *Dir) syncDir(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := d.sync(f); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) && runtime.GOOS != "windows" {
		return err
	}
	return nil
}

func (d *Dir) write(name string, data []byte, durable bool) error {
	dir := filepath.Dir(name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil && durable {
		err = d.sync(f)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// Get implements Store.
func (d *Dir) Get(hash string) ([]byte, error) {
	if len(hash) != 2*sha256.Size {
		return nil, fmt.Errorf("workflows: %q is no hash: %w", hash, ErrMissing)
	}
	if _, err := hex.DecodeString(hash); err != nil {
		return nil, fmt.Errorf("workflows: %q is no hash: %w", hash, ErrMissing)
	}
	data, err := os.ReadFile(d.file(hash))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("workflows: %s: %w (store %s)", hash, ErrMissing, d.path)
	case err != nil:
		return nil, fmt.Errorf("workflows: %w", err)
	case Hash(data) != hash:
		// A file of a machine that lost power. Out of the way, so that the next
		// Put mends it.
		os.Remove(d.file(hash))
		return nil, fmt.Errorf("workflows: %s: damaged, and so %w (store %s)", hash, ErrMissing, d.path)
	}
	return data, nil
}
