package envtest

import (
	"regexp"
	"strings"
	"sync"
)

var (
	sqlStart = regexp.MustCompile(`(?i)^\s*(select|with|insert|update|delete|merge|alter|create|drop|truncate|begin|commit|rollback|savepoint|table|values|comment|analyze)\b`)
	sqlToken = regexp.MustCompile(`'(?:[^']|'')*'|"[^"]*"|--[^\n]*|[\pL_][\pL\d_]*|\d+(?:\.\d+)?`)
)

// sqlWords are the words that a statement may use although nothing has shown them: what an agent that knows SQL knows.
var sqlWords = sync.OnceValue(func() map[string]bool {
	words := map[string]bool{}
	for _, w := range strings.Fields(`abs action add after all alter analyze and any array as asc attname attnum avg before begin between bigint bool boolean btree by
		cascade case cast catalog ceil char character check coalesce collate column columns comment commit concat conname conrelid constraint contype count create cross cte ctid cube current
		database date day days deferrable deferred delete dense desc distinct do double drop else end epoch every except exclude exists extract
		false fetch filter first float floor following for foreign format from full function generate generated grant greatest group grouping
		having hour hours if ilike immediate in index indexes information inner insert int integer intersect interval into is isolation join json jsonb
		key lag language last lateral lead least left length level like limit lower ltrim materialized max merge min minute month months name natural next no not null nullif nulls numeric
		of offset on only or order ordinality over overlaps partition percentile cont pg policy position preceding precision primary public rank real recursive references regclass regexp relkind relname rename
		repeatable replace reset restrict returning right rollback row rows rtrim savepoint schema second select seq sequence series serial session set sets similar smallint some split start stddev string substr substring sum
		table tables text then time timestamp timestamptz to trim true truncate type unbounded union unique update upper using valid validate value values varchar varying view
		week when where window with within work year years zone
		agg char char_length class cols column_name constraint_name data_type date_part date_trunc dense_rank fk fkey idx ordinal over part pk pkey row_number table_name table_schema trunc uk uq round new old res src tmp sub`) {
		words[w] = true
	}
	return words
})

// underived names the first literal or name of a statement that stands nowhere in what is known. Names are split at their
// underscores, so that new ones may be composed of known words; a word of one or two letters is an alias.
func underived(sql, known string) string {
	known = strings.ToLower(known)
	for _, token := range sqlToken.FindAllString(sql, -1) {
		switch lower := strings.ToLower(token); {
		case strings.HasPrefix(token, "--") || strings.Contains(known, strings.ReplaceAll(strings.Trim(lower, `'"%`), "''", "'")):
		case token[0] == '\'' || token[0] == '"' || token[0] >= '0' && token[0] <= '9':
			if !derived(strings.Trim(token, `'"%`), known) {
				return token
			}
		default:
			for _, w := range strings.Split(lower, "_") {
				w = strings.TrimRight(w, "0123456789")
				if len(w) > 2 && !sqlWords()[w] && !strings.Contains(known, w) {
					return token
				}
			}
		}
	}
	return ""
}
