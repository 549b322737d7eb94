package curves

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"
)

// newEvents makes an event file. TensorBoard reads those of a folder in the order of their names, and forgets the steps from next on
// when it comes to one that says that a session starts there.
func newEvents(dir string, next int, now time.Time) (*os.File, error) {
	for i := 0; ; i++ {
		name := fmt.Sprintf("events.out.tfevents.%010d.%d", now.Unix(), i)
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		version := appendBytes(event(0, now), 3, []byte("brain.Event:2"))
		session := appendBytes(event(next, now), 7, []byte{1 << 3, 1}) // SessionLog: status START
		if _, err := f.Write(append(record(version), record(session)...)); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
}

// scalars is the record of an Event with a Summary.
func scalars(step int, keys []string, values map[string]float64, now time.Time) []byte {
	var summary []byte
	for _, k := range keys {
		value := appendBytes(nil, 1, []byte(k))
		value = append(value, 2<<3|5)
		value = binary.LittleEndian.AppendUint32(value, math.Float32bits(float32(values[k])))
		summary = appendBytes(summary, 1, value)
	}
	return record(appendBytes(event(step, now), 5, summary))
}

// event begins an Event of TensorFlow's event.proto with its wall_time and, as proto3 has it, a step that is not 0.
func event(step int, now time.Time) []byte {
	e := []byte{1<<3 | 1}
	e = binary.LittleEndian.AppendUint64(e, math.Float64bits(float64(now.UnixMicro())/1e6))
	if step != 0 {
		e = binary.AppendUvarint(append(e, 2<<3), uint64(step))
	}
	return e
}

// appendBytes appends a field of a protocol buffer that is a string or a message. The field's number is below 16.
func appendBytes(dst []byte, field byte, data []byte) []byte {
	dst = binary.AppendUvarint(append(dst, field<<3|2), uint64(len(data)))
	return append(dst, data...)
}

// record frames data as TFRecord does: length, its checksum, data, its checksum.
func record(data []byte) []byte {
	r := binary.LittleEndian.AppendUint64(nil, uint64(len(data)))
	r = binary.LittleEndian.AppendUint32(r, checksum(r))
	r = append(r, data...)
	return binary.LittleEndian.AppendUint32(r, checksum(data))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is masked, as a checksum of data that has checksums in it should be.
func checksum(data []byte) uint32 {
	c := crc32.Checksum(data, castagnoli)
	return (c>>15 | c<<17) + 0xa282ead8
}
