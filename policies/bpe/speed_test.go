package bpe

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// some gives a quarter of a megabyte of a kind of text.
func some(tb testing.TB, kind string) string {
	var b strings.Builder
	files, err := filepath.Glob(map[string]string{"code": "*.go", "english": "../../*.md", "results": "testdata/token_ids.json"}[kind])
	require.NoError(tb, err)
	for i := 0; b.Len() < 1<<18; i++ {
		switch kind {
		case "results":
			fmt.Fprintf(&b, `{"id":%d,"customer":"C-%05d","total_cents":%d,"status":"%s","placed":"2026-%02d-%02dT%02d:15:00Z","items":[{"sku":"AB-%d","qty":%d}]}`+"\n",
				i, i*7919%99991, i*104729%1000003, []string{"paid", "open", "refunded"}[i%3], i%12+1, i%28+1, i%24, i*31%4096, i%9+1)
		default:
			data, err := os.ReadFile(files[i%len(files)])
			require.NoError(tb, err)
			b.Write(data)
		}
	}
	return b.String()
}

func BenchmarkEncode(b *testing.B) {
	for _, name := range names {
		tok := published(b, name)
		for _, kind := range []string{"english", "code", "results"} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				text := some(b, kind)
				b.SetBytes(int64(len(text)))
				for b.Loop() {
					tok.Encode(text)
				}
			})
		}
	}
}

func BenchmarkTrain(b *testing.B) {
	text := strings.Repeat(some(b, "code")+some(b, "english")+some(b, "results"), 7)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		_, err := Train(slices.Values([]string{text}), 4096, nil)
		require.NoError(b, err)
	}
}

func BenchmarkOpen(b *testing.B) {
	for b.Loop() {
		published(b, "llama3_1")
	}
}
