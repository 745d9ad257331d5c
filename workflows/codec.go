package workflows

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	common "go.temporal.io/api/common/v1"
	"go.temporal.io/sdk/converter"
	"go.temporal.io/sdk/temporal"
	"google.golang.org/protobuf/proto"
)

// Inline is the size in bytes above which a payload goes to the store and only
// its hash into the history. It keeps a task with a thousand payloads below the
// 4 MB of a message, and short texts readable in Temporal's web page.
const Inline = 2 << 10

// The encodings of payloads that the codecs here make, as Temporal's metadata
// names them.
const (
	encodingRef    = "binary/coppice-ref"
	encodingSealed = "binary/coppice-sealed"
)

// Converter returns the data converter that clients and workers of coppice use:
// JSON, sealed if key is not nil, in the store if it is larger than [Inline].
func Converter(s Store, key *Key) converter.DataConverter {
	// The first codec is applied last.
	codecs := []converter.PayloadCodec{refCodec{s}, sealCodec{key}}
	plain := converter.NewCompositeDataConverter(
		converter.NewNilPayloadConverter(),
		converter.NewByteSlicePayloadConverter(),
		converter.NewProtoJSONPayloadConverter(),
		converter.NewProtoPayloadConverter(),
		exactJSON{converter.NewJSONPayloadConverter()},
	)
	return converter.NewCodecDataConverter(plain, codecs...)
}

// FailureConverter returns what a client with that data converter turns failures
// with: their details, such as the report of a run that failed, go the way of all
// payloads, and with a key their messages do, which may say what was asked.
func FailureConverter(c converter.DataConverter, key *Key) converter.FailureConverter {
	return temporal.NewDefaultFailureConverter(temporal.DefaultFailureConverterOptions{
		DataConverter: c, EncodeCommonAttributes: key != nil,
	})
}

// exactJSON is JSON in which a value's own text stays as it is: package json
// escapes <, > and & unless it is told not to, and a text that comes back otherwise
// is another prompt.
type exactJSON struct {
	*converter.JSONPayloadConverter
}

// ToPayload implements converter.PayloadConverter.
func (c exactJSON) ToPayload(v any) (*common.Payload, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("workflows: %w: %w", converter.ErrUnableToEncode, err)
	}
	return &common.Payload{
		Metadata: map[string][]byte{converter.MetadataEncoding: []byte(c.Encoding())},
		Data:     bytes.TrimSuffix(b.Bytes(), []byte("\n")),
	}, nil
}

// refCodec puts large payloads into a store.
type refCodec struct{ store Store }

// Encode implements converter.PayloadCodec.
func (c refCodec) Encode(ps []*common.Payload) ([]*common.Payload, error) {
	out := make([]*common.Payload, len(ps))
	for i, p := range ps {
		out[i] = p
		if len(p.GetData()) <= Inline {
			continue
		}
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			return nil, err
		}
		hash, err := c.store.Put(data, false)
		if err != nil {
			return nil, err
		}
		out[i] = &common.Payload{
			Metadata: map[string][]byte{converter.MetadataEncoding: []byte(encodingRef)},
			Data:     []byte(hash),
		}
	}
	return out, nil
}

// Decode implements converter.PayloadCodec.
func (c refCodec) Decode(ps []*common.Payload) ([]*common.Payload, error) {
	out := make([]*common.Payload, len(ps))
	for i, p := range ps {
		out[i] = p
		if string(p.GetMetadata()[converter.MetadataEncoding]) != encodingRef {
			continue
		}
		data, err := c.store.Get(string(p.GetData()))
		if err != nil {
			return nil, err
		}
		out[i] = &common.Payload{}
		if err := proto.Unmarshal(data, out[i]); err != nil {
			return nil, fmt.Errorf("workflows: payload %s: %w", p.GetData(), err)
		}
	}
	return out, nil
}

// Key seals payloads, so that neither the Temporal server nor who reads the
// store learns what they hold.
type Key struct {
	aead cipher.AEAD
	mac  [32]byte
}

// NewKey returns the key of a secret of at least 16 bytes.
func NewKey(secret []byte) (*Key, error) {
	if len(secret) < 16 {
		return nil, fmt.Errorf("workflows: a secret of %d bytes is too short to seal with: use 16 at least", len(secret))
	}
	derive := func(use string) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte(use))
		return h.Sum(nil)
	}
	block, err := aes.NewCipher(derive("coppice seal"))
	if err != nil {
		return nil, err
	}
	k := &Key{}
	if k.aead, err = cipher.NewGCM(block); err != nil {
		return nil, err
	}
	copy(k.mac[:], derive("coppice nonce"))
	return k, nil
}

// seal encrypts data. The nonce follows from the data: what is sealed twice is
// the same twice, as a store by content needs it, and a nonce never comes with
// two texts.
func (k *Key) seal(data []byte) []byte {
	h := hmac.New(sha256.New, k.mac[:])
	h.Write(data)
	nonce := h.Sum(nil)[:k.aead.NonceSize()]
	return k.aead.Seal(nonce, nonce, data, nil)
}

func (k *Key) open(data []byte) ([]byte, error) {
	n := k.aead.NonceSize()
	if len(data) < n {
		return nil, errors.New("workflows: a sealed payload is too short")
	}
	out, err := k.aead.Open(nil, data[:n], data[n:], nil)
	if err != nil {
		return nil, errors.New("workflows: a payload cannot be opened: it was sealed with another key, or changed since")
	}
	return out, nil
}

// sealCodec encrypts payloads. Without a key it can only say that others did.
type sealCodec struct{ key *Key }

// Encode implements converter.PayloadCodec.
func (c sealCodec) Encode(ps []*common.Payload) ([]*common.Payload, error) {
	if c.key == nil {
		return ps, nil
	}
	out := make([]*common.Payload, len(ps))
	for i, p := range ps {
		data, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
		if err != nil {
			return nil, err
		}
		out[i] = &common.Payload{
			Metadata: map[string][]byte{converter.MetadataEncoding: []byte(encodingSealed)},
			Data:     c.key.seal(data),
		}
	}
	return out, nil
}

// Decode implements converter.PayloadCodec. What is not sealed passes, so that a
// key can be introduced while runs are open.
func (c sealCodec) Decode(ps []*common.Payload) ([]*common.Payload, error) {
	out := make([]*common.Payload, len(ps))
	for i, p := range ps {
		out[i] = p
		if string(p.GetMetadata()[converter.MetadataEncoding]) != encodingSealed {
			continue
		}
		if c.key == nil {
			return nil, errors.New("workflows: a payload was sealed with a key, and none is given (COPPICE_SECRET)")
		}
		data, err := c.key.open(p.GetData())
		if err != nil {
			return nil, err
		}
		out[i] = &common.Payload{}
		if err := proto.Unmarshal(data, out[i]); err != nil {
			return nil, fmt.Errorf("workflows: a sealed payload: %w", err)
		}
	}
	return out, nil
}

// sealedStore is a store whose data is sealed, for what does not pass through a
// data converter.
type sealedStore struct {
	Store
	key *Key
}

func (s sealedStore) Put(data []byte, cache bool) (string, error) {
	return s.Store.Put(s.key.seal(data), cache)
}

func (s sealedStore) Get(hash string) ([]byte, error) {
	data, err := s.Store.Get(hash)
	if err != nil {
		return nil, err
	}
	return s.key.open(data)
}
