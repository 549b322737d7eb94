package grpo

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mcpgym/mcpgym/policies/engine"
	"github.com/mcpgym/mcpgym/policies/schedule"
)

// Config is a run. Its zero value is of no use: begin with Trl, Art or Founding.
type Config struct {
	// The loss, and what its paper sets otherwise.
	Loss        string  `json:"loss"`         // grpo, bnpo, dr_grpo, dapo, gspo, cispo, sapo, luspo, rloo or reinforce
	Level       string  `json:"level"`        // the ratio is of a token or of a sequence; "": as the loss has it
	Mean        string  `json:"mean"`         // sequences, tokens, batch, length or sums; "": as the loss has it
	EpsilonLow  float64 `json:"epsilon_low"`  // the ratio is clipped at 1 - EpsilonLow
	EpsilonHigh float64 `json:"epsilon_high"` // and at 1 + EpsilonHigh; of cispo it is the highest ratio itself
	Delta       float64 `json:"delta"`        // the highest ratio where clipping has no effect (INTELLECT-2); 0: none
	Length      int     `json:"length"`       // of an episode, in tokens of the model: what the mean "length" divides by

	// The other terms.
	KL         float64 `json:"kl"`          // the weight of the divergence from the reference; 0: there is no reference
	Estimator  string  `json:"estimator"`   // k1, k2 or k3; "": k3, and k1 where the divergence is part of the reward (rloo, reinforce)
	KLRatio    bool    `json:"kl_ratio"`    // the estimate is multiplied by the ratio, which makes its gradient unbiased (DeepSeek-V3.2)
	Entropy    float64 `json:"entropy"`     // the weight of the mean entropy, which is rewarded
	TopEntropy float64 `json:"top_entropy"` // only this share of the tokens, those of the highest entropy in their pass, are learned from; 0: all

	// Advantages.
	Baseline   string  `json:"baseline"`   // what rewards are compared with: the group's mean, or that of the others in it: leave-one-out
	Std        string  `json:"std"`        // the deviation that advantages are divided by: group, batch or none
	Population bool    `json:"population"` // it is that of a population (n), not of a sample (n-1)
	Eps        float64 `json:"eps"`        // is added to deviations
	Whiten     bool    `json:"whiten"`     // advantages are divided by their own deviation in the batch, at last

	// What samples are worth.
	Bypass        bool       `json:"bypass"`         // ratios are to the probabilities that the sampler gave, which are not computed anew (as verl's mode of this name)
	Correction    Correction `json:"correction"`     // of the difference between sampling and training
	OffPolicy     float64    `json:"off_policy"`     // sequences that failed and have become less likely by more than this, per token, are left out (DeepSeek-V3.2); 0: none
	MaskTruncated bool       `json:"mask_truncated"` // a sequence that was cut off within a turn carries no loss
	Overlong      Overlong   `json:"overlong"`

	// The loop.
	Steps       int           `json:"steps"`
	Tasks       int           `json:"tasks"`   // the train split's first so many, in another order each epoch; 0: it has no end
	Groups      int           `json:"groups"`  // tasks a step
	Group       int           `json:"group"`   // episodes a task
	Dynamic     int           `json:"dynamic"` // groups without signal are replaced, until so many times Groups have been tried (DAPO); 0: they are kept
	Epochs      int           `json:"epochs"`  // over the episodes of a step
	Updates     int           `json:"updates"` // of the weights, that an epoch is divided into
	Temperature float64       `json:"temperature"`
	MaxTokens   int           `json:"max_tokens"` // a turn
	Optim       engine.Optim  `json:"optim"`
	Schedule    schedule.Rate `json:"schedule"`   // of Optim.Rate, over Steps
	Eval        int           `json:"eval"`       // evaluation after every so many steps, before the first and after the last; 0: only these
	EvalTasks   int           `json:"eval_tasks"` // of the evaluation split: its first; 0: no evaluation
	Seed        uint64        `json:"seed"`       // of tasks' order and of samples

	// What comes out does not depend on these, but for rounding.
	PassTokens int          `json:"-"` // of a pass, of which what episodes begin with alike counts once; more where a single episode has more
	Save       int          `json:"-"` // a checkpoint is written after every so many steps; 0: only of the best evaluation and at the end
	Progress   func(Report) `json:"-"` // is called at the start and after every step; may be nil
}

// Correction says what becomes of the ratio between the probabilities that the trainer and the sampler give to a sample: rounding, a
// quantised sampler or old weights make them differ. Mode is token_truncate or sequence_truncate: the loss is multiplied by the
// ratio, kept within Min and Max; token_mask or sequence_mask: by the ratio, or by 0 where it is not within them; "": by nothing.
type Correction struct {
	Mode string  `json:"mode"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Overlong is a penalty for long episodes. See SoftOverlong.
type Overlong struct {
	Max   int `json:"max"` // 0: no penalty
	Cache int `json:"cache"`
}

// loss is what a paper's loss is made of.
type loss struct {
	surrogate string // clip, cispo, sapo or log
	level     string // token, sequence or product; "" for none
	mean      string
}

var losses = map[string]loss{
	"grpo":      {"clip", "token", "sequences"},    // DeepSeekMath (arXiv 2402.03300), eq. 3
	"bnpo":      {"clip", "token", "tokens"},       // as TRL calls the mean over an update's tokens
	"dr_grpo":   {"clip", "token", "length"},       // Understanding R1-Zero-Like Training (2503.20783)
	"dapo":      {"clip", "token", "batch"},        // DAPO (2503.14476), eq. 8
	"gspo":      {"clip", "sequence", "sequences"}, // GSPO (2507.18071), eq. 5
	"cispo":     {"cispo", "token", "batch"},       // MiniMax-M1 (2506.13585)
	"sapo":      {"sapo", "token", "sequences"},    // SAPO (2511.20347)
	"luspo":     {"clip", "sequence", "sums"},      // LUSPO (2602.05261)
	"rloo":      {"clip", "product", "sequences"},  // Back to Basics (2402.14740), clipped as TRL's RLOOTrainer has it
	"reinforce": {"log", "", "sums"},               // Williams 1992
}

// parts is the configured loss.
func (c Config) parts() loss {
	l := losses[c.Loss]
	if c.Level != "" {
		l.level = c.Level
	}
	if c.Mean != "" {
		l.mean = c.Mean
	}
	return l
}

// rewardKL says that the divergence is subtracted from the reward.
func (c Config) rewardKL() bool { return c.KL > 0 && (c.Loss == "rloo" || c.Loss == "reinforce") }

// lossKL says that the divergence is a term of the loss.
func (c Config) lossKL() bool { return c.KL > 0 && !c.rewardKL() }

func (c Config) estimator() string {
	switch {
	case c.Estimator != "":
		return c.Estimator
	case c.rewardKL():
		return "k1"
	}
	return "k3"
}

// Validate says what is wrong with a Config, in the names of its JSON.
func (c Config) Validate() error {
	if err := errors.Join(c.checkLoss(), c.checkTerms(), c.checkAdvantages(), c.checkLoop()); err != nil {
		return fmt.Errorf("grpo: %w", err)
	}
	return nil
}

func (c Config) checkLoss() error {
	if _, ok := losses[c.Loss]; !ok {
		return fmt.Errorf("no loss %q", c.Loss)
	}
	l := c.parts()
	off := c.Epochs*c.Updates > 1
	switch {
	case !slices.Contains([]string{"", "token", "sequence"}, c.Level):
		return fmt.Errorf("no level %q", c.Level)
	case !slices.Contains([]string{"sequences", "tokens", "batch", "length", "sums"}, l.mean):
		return fmt.Errorf("no mean %q", c.Mean)
	case c.Level != "" && c.Level != losses[c.Loss].level && slices.Contains([]string{"gspo", "luspo", "rloo", "reinforce"}, c.Loss):
		return fmt.Errorf("%s has no level %q", c.Loss, c.Level)
	case l.mean == "length" && c.Length < 1:
		return fmt.Errorf("%s: length needed: what sums are divided by", c.Loss)
	case l.mean != "length" && c.Length != 0:
		return fmt.Errorf("%s: length is of no use", c.Loss)
	case l.surrogate == "clip" && !(c.EpsilonLow > 0 && c.EpsilonLow <= 1):
		return fmt.Errorf("%s: epsilon_low needed, more than 0 and at most 1", c.Loss)
	case l.surrogate == "clip" && !(c.EpsilonHigh > 0):
		return fmt.Errorf("%s: epsilon_high needed, more than 0", c.Loss)
	case l.surrogate == "cispo" && c.EpsilonHigh == 0:
		return errors.New("cispo: epsilon_high needed: the highest ratio itself, such as 5")
	case l.surrogate == "cispo" && !(c.EpsilonHigh > 1):
		return fmt.Errorf("cispo: epsilon_high of %v would cut a ratio of 1: it is the highest ratio itself, such as 5", c.EpsilonHigh)
	case l.surrogate == "cispo" && c.EpsilonLow != 0:
		return errors.New("cispo: epsilon_low is of no use: ratios have no lower bound")
	case (l.surrogate == "sapo" || l.surrogate == "log") && (c.EpsilonLow != 0 || c.EpsilonHigh != 0):
		return fmt.Errorf("%s: epsilon_low and epsilon_high are of no use: nothing is clipped", c.Loss)
	case c.Delta != 0 && l.surrogate != "clip":
		return fmt.Errorf("%s: delta is of no use", c.Loss)
	case c.Delta != 0 && !(c.Delta > 1+c.EpsilonHigh):
		return fmt.Errorf("delta of %v: it must be above 1 + epsilon_high", c.Delta)
	case c.Loss == "reinforce" && off:
		return fmt.Errorf("reinforce: %d updates an episode: it has no ratio, so that only the first is right", c.Epochs*c.Updates)
	}
	return nil
}

func (c Config) checkTerms() error {
	k, m := c.estimator(), c.Correction
	switch {
	case !(c.KL >= 0) || !(c.Entropy >= 0):
		return fmt.Errorf("kl of %v and entropy of %v", c.KL, c.Entropy)
	case !slices.Contains([]string{"k1", "k2", "k3"}, k):
		return fmt.Errorf("no estimator %q", c.Estimator)
	case c.rewardKL() && (k != "k1" || c.KLRatio):
		return fmt.Errorf("%s: kl is part of the reward, where only the estimator k1 without kl_ratio makes sense", c.Loss)
	case c.lossKL() && k == "k1" && !c.KLRatio:
		return errors.New("estimator k1 without kl_ratio: its gradient is 0 on average")
	case !(c.TopEntropy >= 0 && c.TopEntropy < 1):
		return fmt.Errorf("top_entropy of %v", c.TopEntropy)
	case !(c.OffPolicy >= 0):
		return fmt.Errorf("off_policy of %v", c.OffPolicy)
	case c.Overlong != (Overlong{}) && !(0 < c.Overlong.Cache && c.Overlong.Cache < c.Overlong.Max):
		return fmt.Errorf("overlong of %+v", c.Overlong)
	case c.Bypass && m.Mode != "":
		return errors.New("bypass with a correction: ratios are to what was sampled already")
	case c.Bypass && c.rewardKL():
		return fmt.Errorf("%s: bypass is of no use: kl needs the probabilities anyhow", c.Loss)
	case m.Mode == "" && m != (Correction{}):
		return errors.New("correction: mode needed")
	case m.Mode != "" && !slices.Contains([]string{"token_truncate", "token_mask", "sequence_truncate", "sequence_mask"}, m.Mode):
		return fmt.Errorf("correction: no mode %q", m.Mode)
	case m.Mode != "" && !(m.Min >= 0 && m.Min <= 1 && m.Max >= 1):
		return fmt.Errorf("correction: ratios from %v to %v", m.Min, m.Max)
	}
	return nil
}

func (c Config) checkAdvantages() error {
	switch {
	case c.Baseline != "mean" && c.Baseline != "leave-one-out":
		return fmt.Errorf("no baseline %q", c.Baseline)
	case c.Loss == "rloo" && c.Baseline != "leave-one-out":
		return errors.New("rloo: the baseline is leave-one-out")
	case !slices.Contains([]string{"group", "batch", "none"}, c.Std):
		return fmt.Errorf("no std %q", c.Std)
	case (c.Std != "none" || c.Whiten) && !(c.Eps > 0):
		return fmt.Errorf("eps of %v", c.Eps)
	case c.Std == "batch" && c.Whiten:
		return errors.New("std batch and whiten: the batch's deviation would be divided by twice")
	}
	return nil
}

func (c Config) checkLoop() error {
	switch {
	case c.Steps < 1 || c.Groups < 1 || c.Epochs < 1 || c.Updates < 1 || c.MaxTokens < 1 || c.PassTokens < 1:
		return fmt.Errorf("%d steps, groups %d, epochs %d, updates %d, max_tokens %d, %d tokens a pass", c.Steps, c.Groups, c.Epochs, c.Updates, c.MaxTokens, c.PassTokens)
	case c.Group < 2:
		return fmt.Errorf("group of %d: what would an episode be compared with?", c.Group)
	case c.Updates > c.Groups*c.Group:
		return fmt.Errorf("updates of %d, for %d episodes", c.Updates, c.Groups*c.Group)
	case c.Tasks < 0 || c.Tasks > 0 && c.Tasks < c.Groups:
		return fmt.Errorf("tasks of %d, for %d groups a step", c.Tasks, c.Groups)
	case c.Dynamic < 0 || c.Eval < 0 || c.EvalTasks < 0 || c.Save < 0:
		return fmt.Errorf("dynamic of %d, eval of %d with %d tasks, checkpoints every %d", c.Dynamic, c.Eval, c.EvalTasks, c.Save)
	case !(c.Temperature > 0):
		return fmt.Errorf("temperature of %v: samples would not be of the policy that is trained", c.Temperature)
	}
	return c.Schedule.Validate()
}

// Trl has the defaults of TRL 1.16 (GRPOConfig), but for what is of its hardware. One group a step is 8 sequences a device.
func Trl() Config {
	return Config{
		Loss: "dapo", EpsilonLow: 0.2, EpsilonHigh: 0.2, KLRatio: true, Baseline: "mean", Std: "group", Eps: 1e-4,
		Correction: Correction{Mode: "sequence_mask", Max: 3},
		Groups:     1, Group: 8, Epochs: 1, Updates: 1, Temperature: 1, MaxTokens: 512,
		Optim:    engine.Optim{Rate: 1e-6, Beta1: 0.9, Beta2: 0.999, Epsilon: 1e-8, Clip: 1},
		Schedule: schedule.Rate{Decay: "linear"}, PassTokens: 8192,
	}
}

// Art has the defaults of OpenPipe's ART: ratios up to 5, as cispo has them, the mean of sequences' means, advantages of the
// population's deviation. Steps are of ART.E's size.
func Art() Config {
	return Config{
		Loss: "cispo", Mean: "sequences", EpsilonHigh: 5, Baseline: "mean", Std: "group", Population: true, Eps: 1e-6,
		Groups: 8, Group: 6, Epochs: 1, Updates: 1, Temperature: 1, MaxTokens: 1024,
		Optim: engine.Optim{Rate: 5e-6, Beta1: 0.9, Beta2: 0.99, Epsilon: 1e-8, WeightDecay: 0.1, Clip: 0.1}, PassTokens: 8192,
	}
}

// Founding has the settings of the note that this project began with, on top of Trl: three epochs of so many tasks at a rate of 1e-5, 8
// episodes a task and 16 an update (a batch of 4, accumulated 4 times), 1024 tokens a turn. Its limit of 1024 tokens for prompts is left
// out: TRL 1.16 has none, and neither cuts nor drops long ones. Where a model has no room for a prompt, Train's error names the task.
func Founding(tasks int) Config {
	c := Trl()
	c.Groups, c.Group, c.MaxTokens, c.Optim.Rate = 2, 8, 1024, 1e-5
	c.Tasks, c.Steps = tasks, schedule.Steps(3, tasks, c.Groups)
	return c
}
