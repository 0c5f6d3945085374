package server

import (
	"errors"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/shared"
)

// OpenAI's own Go client reads what the server writes: it is strict about types that others let pass.
func TestOpenAIClient(t *testing.T) {
	const key = "sk-of-the-test"
	c := demoServer(t, func(c *Config) { c.Keys = []string{key}; c.Embeddings = true })
	ctx := t.Context()
	client := openai.NewClient(option.WithBaseURL(c.url+"/v1/"), option.WithAPIKey(key), option.WithMaxRetries(0))
	ask := openai.ChatCompletionNewParams{
		Model:     "demo",
		Messages:  []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is 12+7?")},
		MaxTokens: openai.Int(20),
		Seed:      openai.Int(7),
	}
	whole, err := client.Chat.Completions.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if whole.Choices[0].Message.Content != "12 + 7 = 19" || whole.Choices[0].FinishReason != "stop" || whole.Usage.TotalTokens == 0 {
		t.Errorf("%s", whole.RawJSON())
	}

	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := client.Chat.Completions.NewStreaming(ctx, ask)
	var sum openai.ChatCompletionAccumulator
	for stream.Next() {
		if !sum.AddChunk(stream.Current()) {
			t.Fatalf("a chunk that does not follow: %s", stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if sum.Choices[0].Message.Content != whole.Choices[0].Message.Content || sum.Usage.CompletionTokens != whole.Usage.CompletionTokens {
		t.Errorf("a stream of %q, %d tokens", sum.Choices[0].Message.Content, sum.Usage.CompletionTokens)
	}

	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
	ask.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{
		Name:       "add",
		Parameters: shared.FunctionParameters{"type": "object", "properties": object{"a": object{"type": "integer", "maximum": 99}}, "required": []string{"a"}},
	})}
	ask.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "add"})
	ask.MaxTokens = openai.Int(200)
	call, err := client.Chat.Completions.New(ctx, ask)
	if err != nil {
		t.Fatal(err)
	}
	if calls := call.Choices[0].Message.ToolCalls; len(calls) != 1 || calls[0].Function.Name != "add" || call.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("%s", call.RawJSON())
	}

	models, err := client.Models.List(ctx)
	if err != nil || len(models.Data) != 1 || models.Data[0].ID != "demo" {
		t.Errorf("%v, %v", models, err)
	}
	text, err := client.Completions.New(ctx, openai.CompletionNewParams{
		Model: "demo", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("One two")}, MaxTokens: openai.Int(3), Logprobs: openai.Int(2),
	})
	if err != nil || len(text.Choices[0].Logprobs.TokenLogprobs) != 3 {
		t.Errorf("%v, %v", text, err)
	}
	vec, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: "demo", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("a")}})
	if err != nil || len(vec.Data[0].Embedding) == 0 {
		t.Errorf("%v, %v", vec, err)
	}

	ask.Model = "none"
	_, err = client.Chat.Completions.New(ctx, ask)
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != http.StatusNotFound || e.Code != "model_not_found" {
		t.Errorf("a model that is not there: %v", err)
	}
}
