package checkpoint

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/mcpgym/mcpgym/policies/lm/internal/f32"
)

// DType is how a file stores a tensor's values, as safetensors calls it.
type DType string

// The types that are read. F16 is never written.
const (
	F32  DType = "F32"
	BF16 DType = "BF16"
	F16  DType = "F16"
)

func (t DType) size() int {
	if t == F32 {
		return 4
	}
	return 2
}

// Tensor is a tensor in memory, its values row-major: either F32 or BF16 is set.
type Tensor struct {
	Name  string
	Shape []int
	F32   []float32
	BF16  []uint16 // the upper halves of float32
}

// Floats gives F32, or BF16 widened into a new slice.
func (t Tensor) Floats() []float32 {
	if t.BF16 == nil {
		return t.F32
	}
	f := make([]float32, len(t.BF16))
	f32.Widen(f, t.BF16)
	return f
}

func (t Tensor) dtype() DType {
	if t.BF16 != nil {
		return BF16
	}
	return F32
}

// The format's own limit. A header must also fit into its file.
const maxHeader = 100_000_000

// File is an open safetensors file, whose header has been checked against its size. Its methods may be called concurrently.
type File struct {
	file    *os.File
	entries map[string]entry
	data    int64 // where the tensors begin
}

type entry struct {
	DType   DType    `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// OpenFile opens a safetensors file and reads its header. A file that is not exactly a header and the tensors it lists is refused.
func OpenFile(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err // it names the path
	}
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	f := &File{file: file}
	if err == nil {
		f.entries, f.data, err = readHeader(file, info.Size())
	}
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// readHeader reads the header of a file of some size, and says where the tensors begin.
func readHeader(r io.ReaderAt, size int64) (map[string]entry, int64, error) {
	var prefix [8]byte
	if size < int64(len(prefix)) {
		return nil, 0, fmt.Errorf("header: cut off, the file has %d bytes", size)
	}
	if _, err := r.ReadAt(prefix[:], 0); err != nil {
		return nil, 0, fmt.Errorf("header: %w", err)
	}
	n, rest := binary.LittleEndian.Uint64(prefix[:]), size-int64(len(prefix))
	if n > maxHeader || n > uint64(rest) {
		return nil, 0, fmt.Errorf("header: %d bytes, of which the file has %d and %d are allowed", n, rest, maxHeader)
	}
	text := make([]byte, n)
	if _, err := r.ReadAt(text, int64(len(prefix))); err != nil {
		return nil, 0, fmt.Errorf("header: %w", err)
	}
	var members map[string]jsontext.Value
	if err := decode(text, &members); err != nil {
		return nil, 0, fmt.Errorf("header: %w", err)
	}
	if members == nil {
		return nil, 0, errors.New("header: null")
	}
	entries := make(map[string]entry, len(members))
	for name, v := range members {
		if name == "__metadata__" {
			if err := decode(v, new(map[string]string)); err != nil {
				return nil, 0, fmt.Errorf("header: %s: %w", name, err)
			}
			continue
		}
		var e entry
		if err := decode(v, &e, jsonv2.RejectUnknownMembers(true)); err != nil {
			return nil, 0, fmt.Errorf("tensor %q: %w", name, err)
		}
		if err := e.check(); err != nil {
			return nil, 0, fmt.Errorf("tensor %q: %w", name, err)
		}
		entries[name] = e
	}
	// The tensors must cover the rest of the file, each byte once.
	end := int64(0)
	for _, name := range inFileOrder(entries) {
		if e := entries[name]; e.Offsets[0] != end {
			return nil, 0, fmt.Errorf("tensor %q: data_offsets: begin at %d, want %d, the end of the one before", name, e.Offsets[0], end)
		}
		end = entries[name].Offsets[1]
	}
	if have := rest - int64(n); end != have {
		return nil, 0, fmt.Errorf("data: %d bytes, but the header lists %d", have, end)
	}
	return entries, size - rest + int64(n), nil
}

// check compares what the entry says about its size.
func (e entry) check() error {
	if !slices.Contains(dtypes, e.DType) {
		return fmt.Errorf("dtype: %q is none of %q", e.DType, dtypes)
	}
	if e.Shape == nil {
		return errors.New("shape: missing")
	}
	n := int64(e.DType.size())
	for _, d := range e.Shape {
		if d < 0 {
			return fmt.Errorf("shape: %v has a negative size", e.Shape)
		}
		if d > 0 && n > math.MaxInt64/int64(d) {
			return fmt.Errorf("shape: %v is too large", e.Shape)
		}
		n *= int64(d)
	}
	if begin, end := e.Offsets[0], e.Offsets[1]; begin < 0 || end < begin || end-begin != n {
		return fmt.Errorf("data_offsets: %v, but the shape %v takes %d bytes of %s", e.Offsets, e.Shape, n, e.DType)
	}
	return nil
}

func inFileOrder(entries map[string]entry) []string {
	return slices.SortedFunc(maps.Keys(entries), func(a, b string) int {
		x, y := entries[a].Offsets, entries[b].Offsets
		return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1]), strings.Compare(a, b))
	})
}

// Close closes the file.
func (f *File) Close() error { return f.file.Close() }

// Tensors lists what the file holds, by name.
func (f *File) Tensors() []Weight {
	var w []Weight
	for _, name := range slices.Sorted(maps.Keys(f.entries)) {
		w = append(w, Weight{name, slices.Clone(f.entries[name].Shape)})
	}
	return w
}

// Read reads a tensor: F32 and F16 as F32, BF16 as BF16. One that holds a NaN or an infinity is refused.
func (f *File) Read(name string) (Tensor, error) {
	t, err := f.read(name)
	if err != nil {
		return Tensor{}, fmt.Errorf("%s: tensor %q: %w", f.file.Name(), name, err)
	}
	return t, nil
}

var errNotFinite = errors.New("holds a value that is not a finite number")

func (f *File) read(name string) (Tensor, error) {
	e, ok := f.entries[name]
	if !ok {
		return Tensor{}, errors.New("missing")
	}
	t := Tensor{Name: name, Shape: slices.Clone(e.Shape)}
	length := e.Offsets[1] - e.Offsets[0]
	if n := length / int64(e.DType.size()); e.DType == BF16 {
		t.BF16 = make([]uint16, n)
	} else {
		t.F32 = make([]float32, n)
	}
	buf := make([]byte, min(length, 1<<18))
	for done := int64(0); done < length; done += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), length-done)]
		if _, err := f.file.ReadAt(buf, f.data+e.Offsets[0]+done); err != nil {
			return Tensor{}, err
		}
		if at := int(done) / e.DType.size(); !t.fill(at, buf, e.DType) {
			return Tensor{}, errNotFinite
		}
	}
	return t, nil
}

// fill sets the values from at on, and says whether they are finite: adding one to an exponent carries into the sign's place only
// where all its bits are set.
func (t Tensor) fill(at int, buf []byte, as DType) bool {
	switch as {
	case F32:
		to, carry := t.F32[at:][:len(buf)/4], uint32(0)
		for i := range to {
			b := binary.LittleEndian.Uint32(buf[4*i : 4*i+4])
			carry |= b&0x7f800000 + 1<<23
			to[i] = math.Float32frombits(b)
		}
		return carry>>31 == 0
	case BF16:
		to, carry := t.BF16[at:][:len(buf)/2], uint16(0)
		for i := range to {
			b := binary.LittleEndian.Uint16(buf[2*i : 2*i+2])
			carry |= b&0x7f80 + 1<<7
			to[i] = b
		}
		return carry>>15 == 0
	default: // F16
		to, carry := t.F32[at:][:len(buf)/2], uint16(0)
		for i := range to {
			b := binary.LittleEndian.Uint16(buf[2*i : 2*i+2])
			carry |= b&0x7c00 + 1<<10
			to[i] = widenF16(b)
		}
		return carry>>15 == 0
	}
}

// widenF16 gives a finite float16 as a float32.
func widenF16(b uint16) float32 {
	sign, exponent, fraction := uint32(b>>15)<<31, uint32(b>>10&0x1f), uint32(b&0x3ff)
	if exponent == 0 { // a multiple of 2^-24
		return math.Float32frombits(sign | math.Float32bits(float32(fraction)*0x1p-24))
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}

// WriteFile writes a safetensors file by way of a temporary one next to it. Equal tensors give equal bytes, in any order. Values that
// are not finite, repeated names, and shapes that do not fit are refused.
func WriteFile(path string, tensors []Tensor) error { return writeFile(path, tensors, Tensor.dtype) }

// writeFile is WriteFile with a choice of types, F32 or BF16, that the tensors are converted to.
func writeFile(path string, tensors []Tensor, as func(Tensor) DType) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	// As the reference orders them: the wider first, so that all are aligned.
	tensors = slices.SortedFunc(slices.Values(tensors), func(a, b Tensor) int {
		return cmp.Or(as(b).size()-as(a).size(), strings.Compare(a.Name, b.Name))
	})
	header, err := makeHeader(tensors, as)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // there is none after the renaming
	defer f.Close()
	w := bufio.NewWriterSize(f, 1<<18)
	if _, err := w.Write(header); err != nil {
		return err
	}
	for _, t := range tensors {
		if err := t.write(w, as(t)); err != nil {
			return fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	if err := cmp.Or(w.Flush(), f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// makeHeader gives a header with its length in front, padded so that the tensors begin at a multiple of 8.
func makeHeader(tensors []Tensor, as func(Tensor) DType) ([]byte, error) {
	var b bytes.Buffer
	b.WriteString("\x00\x00\x00\x00\x00\x00\x00\x00" + `{"__metadata__":{"format":"pt"}`)
	end, seen := int64(0), map[string]bool{}
	for _, t := range tensors {
		if seen[t.Name] || t.Name == "__metadata__" {
			return nil, fmt.Errorf("tensor %q: the name is taken", t.Name)
		}
		seen[t.Name] = true
		e := entry{DType: as(t), Shape: t.Shape, Offsets: [2]int64{end, end + int64(len(t.F32)+len(t.BF16))*int64(as(t).size())}}
		if t.F32 != nil && t.BF16 != nil {
			return nil, fmt.Errorf("tensor %q: has both F32 and BF16", t.Name)
		}
		if err := e.check(); err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		name, err := jsonv2.Marshal(t.Name)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		value, err := jsonv2.Marshal(e)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		fmt.Fprintf(&b, ",%s:%s", name, value)
		end = e.Offsets[1]
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len()-8 > maxHeader {
		return nil, fmt.Errorf("header: %d bytes, of which %d are allowed", b.Len()-8, maxHeader)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-8))
	return b.Bytes(), nil
}

// write writes the values as F32 or BF16. Rounded to BF16, those near the largest float32 are infinite, and refused like others.
func (t Tensor) write(w io.Writer, as DType) error {
	const chunk = 1 << 15
	buf := make([]byte, 0, chunk*as.size())
	wide, half := make([]float32, chunk), make([]uint16, chunk)
	for at, n := 0, len(t.F32)+len(t.BF16); at < n; at += chunk {
		end := min(n, at+chunk)
		wide, half := wide[:end-at], half[:end-at]
		switch {
		case as == F32 && t.BF16 == nil:
			wide = t.F32[at:end]
		case as == F32:
			f32.Widen(wide, t.BF16[at:end])
		case t.BF16 == nil:
			f32.Round(half, t.F32[at:end])
		default:
			half = t.BF16[at:end]
		}
		buf = buf[:0]
		carry := uint32(0) // as in fill
		if as == F32 {
			for _, x := range wide {
				b := math.Float32bits(x)
				carry |= b&0x7f800000 + 1<<23
				buf = binary.LittleEndian.AppendUint32(buf, b)
			}
		} else {
			for _, b := range half {
				carry |= uint32(b&0x7f80+1<<7) << 16
				buf = binary.LittleEndian.AppendUint16(buf, b)
			}
		}
		if carry>>31 != 0 {
			return errNotFinite
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}
