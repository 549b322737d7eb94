package bench

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Imports run one way. Each package may import only these of the project; tests are free.
var allowed = map[string][]string{
	"sandboxes":                       {},
	"sandboxes/casetest":              {},
	"sandboxes/sandboxtest":           {"sandboxes"},
	"sandboxes/mcpmem":                {"sandboxes"},
	"sandboxes/confine":               {},
	"sandboxes/container":             {"sandboxes", "sandboxes/confine", "sandboxes/internal/owner"},
	"sandboxes/internal/owner":        {},
	"sandboxes/process":               {"sandboxes"},
	"sandboxes/postgres":              {"sandboxes", "sandboxes/mcpmem"},
	"sandboxes/postgres/postgrestest": {"sandboxes/postgres"},
	"sandboxes/files":                 {"sandboxes", "sandboxes/internal/owner", "sandboxes/mcpmem", "sandboxes/process"},
	"sandboxes/files/filesd":          {"sandboxes/files"},
	"sandboxes/join":                  {"sandboxes"},
	"sandboxes/lint":                  {"sandboxes", "sandboxes/confine", "sandboxes/files", "sandboxes/join", "sandboxes/mcpmem", "sandboxes/postgres"},
	"sandboxes/weather":               {"sandboxes", "sandboxes/mcpmem"},
	"envs":                            {"sandboxes"},
	"rewards":                         {"envs"},
	"policies":                        {"envs", "sandboxes"},
	"policies/llm":                    {},
	"policies/bpe":                    {},
	"policies/checkpoints":            {"policies/curves"},
	"policies/curves":                 {},
	"policies/engine":                 {},
	"policies/engine/enginetest":      {"policies/engine"},
	"policies/lm":                     {"policies/engine", "policies/lm/internal/checkpoint", "policies/lm/internal/f32", "policies/toolcall"},
	"policies/lm/internal/checkpoint": {"policies/lm/internal/f32"},
	"policies/lm/internal/f32":        {},
	"policies/grpo":                   {"envs", "policies", "policies/checkpoints", "policies/curves", "policies/engine", "policies/schedule", "policies/toolcall"},
	"policies/schedule":               {},
	"policies/serve":                  {"policies/engine", "policies/toolcall"},
	"policies/sft":                    {"policies/checkpoints", "policies/curves", "policies/engine", "policies/schedule"},
	"policies/toolcall":               {"envs", "policies", "policies/bpe", "policies/engine", "sandboxes"},
	"policies/redteam":                {"envs", "policies"},
	"rewards/ruler":                   {"envs", "policies/llm"},
	"envs/envtest":                    {"envs", "policies", "policies/redteam", "rewards", "sandboxes"},
	"envs/weather":                    {"envs", "rewards", "sandboxes", "sandboxes/weather"},
	"envs/postgres":                   {"envs", "policies/redteam", "rewards", "sandboxes", "sandboxes/postgres"},
	"envs/lint":                       {"envs", "rewards", "sandboxes", "sandboxes/confine", "sandboxes/files", "sandboxes/lint"},
	"envs/dba":                        {"envs", "policies/redteam", "rewards", "sandboxes", "sandboxes/confine", "sandboxes/files", "sandboxes/lint", "sandboxes/postgres"},
	"envs/files":                      {"envs", "rewards", "sandboxes", "sandboxes/files"},
	"bench":                           {"envs", "envs/dba", "envs/files", "envs/lint", "envs/postgres", "envs/weather", "policies", "policies/curves", "rewards", "sandboxes", "sandboxes/confine", "sandboxes/container", "sandboxes/files", "sandboxes/postgres"},
	"bench/mcpgym":                    {"bench", "envs", "policies", "policies/bpe", "policies/checkpoints", "policies/curves", "policies/engine", "policies/grpo", "policies/lm", "policies/schedule", "policies/serve", "policies/sft", "policies/toolcall", "rewards", "sandboxes"},
}

func TestImports(t *testing.T) {
	const module = "github.com/mcpgym/mcpgym"
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		name := strings.TrimPrefix(f[0], module+"/")
		may, known := allowed[name]
		if !known {
			t.Errorf("package %s is not in the table of allowed imports", name)
			continue
		}
		for _, imp := range f[1:] {
			if ours, ok := strings.CutPrefix(imp, module+"/"); ok && !slices.Contains(may, ours) {
				t.Errorf("%s imports %s, which the layout does not allow", name, ours)
			}
			if name == "sandboxes" && strings.Contains(strings.SplitN(imp, "/", 2)[0], ".") {
				t.Errorf("sandboxes imports %s, want only the standard library", imp)
			}
			if strings.Contains(imp, "testcontainers") && name != "sandboxes/container" {
				t.Errorf("%s imports testcontainers, which only sandboxes/container may", name)
			}
		}
	}
}
