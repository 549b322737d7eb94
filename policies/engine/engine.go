// Package engine is the contract between an algorithm and whatever holds a policy's weights. The mathematics of a loss stays with
// the algorithm: an engine samples, gives log-probabilities, takes gradients with respect to them, and steps.
package engine

import (
	"context"
	"encoding/json"
)

// Engine is a causal language model that can be sampled from and trained. Generate, and the methods of Codec, may be called
// concurrently with each other; the others are for one goroutine at a time, while nothing is being generated.
type Engine interface {
	Codec

	// Generate samples a continuation. Requests at the same time share the work; what one returns depends on its own Prompt,
	// options and Seed and on the weights, beyond rounding never on the others. An interrupted one returns ctx's error.
	Generate(ctx context.Context, r Request) (Sample, error)

	// Forward gives the log-probabilities of a batch's tokens. The pass keeps what Backward needs until that or Discard is called.
	Forward(ctx context.Context, b Batch) (Pass, error)

	// Step updates the weights by AdamW (Loshchilov and Hutter 2019) from the gradients that have been added up since the last
	// Step, and clears these. It returns the gradients' global norm before clipping; where that is not finite nothing changes and
	// the error wraps ErrNotFinite.
	Step(ctx context.Context, o Optim) (norm float64, err error)

	// Version is the number of steps that the weights have seen.
	Version() int

	// Snapshot writes into a new folder all that training depends on: the weights that are trained, their moments and Version.
	// Restore reads it into an engine of the same model, which then goes on bit for bit as the one that was saved.
	Snapshot(dir string) error
	Restore(dir string) error

	// Export writes a folder of the Hugging Face layout: the adapter in that of PEFT where the engine trains one, else the model.
	Export(dir string) error

	Close() error
}

// Codec turns conversations into tokens and back. A conversation is Open, then by turns what the model said and what Next makes of
// the replies: its tokens are only ever added to, never decoded and encoded again. The methods may be called concurrently.
type Codec interface {
	// Open gives the tokens of a conversation up to where the model's turn begins.
	Open(tools []Tool, messages []Message) ([]int32, error)
	// Next gives the tokens that stand between the end of a model's turn and its next one. Where stopped is false the turn was
	// cut off before its stop token, which is then the first of them.
	Next(stopped bool, replies []Message) ([]int32, error)
	// Turn gives the tokens of a model's turn that somebody else has written, its stop token included.
	Turn(m Message) ([]int32, error)
	// Decode gives the text of tokens, special ones included but for a stop token at the end.
	Decode(tokens []int32) string
	// Stops are the tokens that end a turn.
	Stops() []int32
}

// Tool is what a conversation may call. Parameters is its JSON Schema, whose keys keep their order.
type Tool struct {
	Name, Description string
	Parameters        json.RawMessage
}

// Message is a part of a conversation. Its role is system, user, assistant or tool.
type Message struct {
	Role      string
	Text      string
	Reasoning string // of an assistant
	Calls     []Call // of an assistant
	CallID    string // of a tool's reply, and Name
	Name      string
}

// Call is a call of a tool. Arguments is a JSON object, whose keys keep their order.
type Call struct {
	ID, Name  string
	Arguments json.RawMessage
}

// Request asks for a continuation of Prompt, which is never empty.
type Request struct {
	Prompt    []int32
	MaxTokens int
	Stops     []int32 // tokens that end it; nil for those of the codec

	// Logits are divided by Temperature; 0 takes the likeliest token. Then of the likeliest tokens only TopK remain (0: all), of
	// these the fewest whose probability reaches TopP (0 or 1: all), and of these the ones that are at least MinP times as likely
	// as the likeliest.
	Temperature float64
	TopK        int
	TopP, MinP  float64
	Seed        uint64

	// Each, where it is not nil, is called with each token before Generate returns: as soon as there is one, if the engine can.
	Each func(token int32)
}

// Sample is a continuation.
type Sample struct {
	Tokens   []int32   // the stop token included
	LogProbs []float32 // one a token: of the softmax of logits/Temperature (of the logits at temperature 0), before tokens were left out
	Finish   string    // "stop", or "length" for one that was cut off
	Version  int       // of the weights
}

// Batch is a list of sequences, each of at least two tokens. How an engine pads or packs them changes nothing beyond rounding.
type Batch struct {
	Tokens      [][]int32
	Mask        [][]bool // the tokens that are asked for, of the shape of Tokens; the first of a row never is. Nil: all others
	Temperature float64  // that logits are divided by; 0 means 1
	Reference   bool     // the model as it was before adapters: no gradients
}

// Pass is the result of a forward pass. Values are of the shape of Batch.Tokens, and 0 where nothing was asked for.
type Pass interface {
	// LogProbs has at [i][t] the log-probability of token t of row i, given those before it.
	LogProbs() [][]float32
	// Entropy has at [i][t] the entropy, in nats, of the distribution that token t was drawn from.
	Entropy() [][]float32
	// Backward adds to the gradients of the weights, given the loss's with respect to LogProbs and Entropy (nil: none). It ends
	// the pass.
	Backward(ctx context.Context, dLogProbs, dEntropy [][]float32) error
	// Discard ends the pass. It does nothing after the end.
	Discard()
}

// Optim is a step of AdamW. Norms' weights and biases do not decay.
type Optim struct {
	Rate                 float64
	Beta1, Beta2         float64
	Epsilon, WeightDecay float64
	Clip                 float64 // the largest global norm of the gradients; 0: any
}
