package rewards

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/mcpgym/mcpgym/envs"
)

// Reported is the gate for tasks whose verifier is a program that says the reward itself: the score is what it reports in
// answer to the task's one Assertion that is marked as Report. Less than 1 is no success. A report is a text of JSON, an
// object with the member reward, a number from 0 to 1, and nothing else.
//
// A program that is missing, fails, is cut short or reports something else leaves the episode without a score, which is not 0,
// unless it fails because of what the agent did: an Env finds that out and ends the episode as EndKilled. The report must come
// from where the agent cannot write: a file that it can reach is no report.
func Reported(weight float64) Component {
	return Component{"reported", envs.Gate, weight, func(t *envs.Trajectory) (envs.Part, error) {
		at := -1
		for i, a := range t.Task.Assertions {
			if a.Report {
				if at >= 0 {
					return envs.Part{}, errors.New("the task asks for two reports")
				}
				at = i
			}
		}
		switch {
		case at < 0:
			return envs.Part{}, errors.New("the task asks for no report")
		case t.End == envs.EndKilled:
			return scored(0, "the sandbox is gone")
		case len(t.Probes) != len(t.Task.Assertions):
			return envs.Part{Reason: fmt.Sprintf("%d of %d questions were answered", len(t.Probes), len(t.Task.Assertions))}, nil
		case t.Probes[at].Err != "":
			return envs.Part{Reason: "no report: " + t.Probes[at].Err}, nil
		}
		reward, err := readReport(t.Probes[at].Value)
		if err != nil {
			return envs.Part{Reason: fmt.Sprintf("report unreadable: %v", err)}, nil
		}
		return scored(reward, "the verifier reports %v", reward)
	}}
}

// readReport reads the answer to a question for a report: a JSON string that holds what the program wrote.
func readReport(answer json.RawMessage) (float64, error) {
	v, err := envs.DecodeJSON(answer)
	if err != nil {
		return 0, err
	}
	text, ok := v.(string)
	if !ok {
		return 0, errors.New("it is not a text")
	}
	if v, err = envs.DecodeJSON([]byte(text)); err != nil {
		return 0, err
	}
	object, _ := v.(map[string]any)
	number, ok := object["reward"].(json.Number)
	if !ok || len(object) != 1 {
		return 0, errors.New("it is not an object with the number reward and nothing else")
	}
	reward, err := number.Float64()
	if err != nil || !(reward >= 0 && reward <= 1) {
		return 0, fmt.Errorf("reward %.40s is not a number from 0 to 1", number)
	}
	return reward + 0, nil // + 0 turns -0 into 0
}
