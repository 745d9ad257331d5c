package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	oairesponses "github.com/openai/openai-go/v3/responses"
	"github.com/openai/openai-go/v3/shared"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// official is OpenAI's client for Go.
func (c *client) official(more ...option.RequestOption) openai.Client {
	return openai.NewClient(append([]option.RequestOption{option.WithBaseURL(c.url + "/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0)}, more...)...)
}

func say(text string) []openai.ChatCompletionMessageParamUnion {
	return []openai.ChatCompletionMessageParamUnion{openai.DeveloperMessage("Be brief."), openai.UserMessage(text)}
}

func TestOfficialClientChats(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), nil)
	api, ctx := c.official(), t.Context()

	models, err := api.Models.List(ctx)
	require.NoError(t, err)
	require.Len(t, models.Data, 1)
	one, err := api.Models.Get(ctx, models.Data[0].ID)
	require.NoError(t, err)
	assert.Equal(t, "chain", one.ID)

	ask := openai.ChatCompletionNewParams{
		Model: "chain", Messages: say("xyz"), MaxCompletionTokens: openai.Int(5), Temperature: openai.Float(0), Seed: openai.Int(1),
		Logprobs: openai.Bool(true), TopLogprobs: openai.Int(2),
	}
	whole, err := api.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	choice := whole.Choices[0]
	assert.Equal(t, "length", choice.FinishReason)
	assert.EqualValues(t, 5, whole.Usage.CompletionTokens)
	assert.Equal(t, whole.Usage.PromptTokens+5, whole.Usage.TotalTokens)
	require.Len(t, choice.Logprobs.Content, 5)
	for _, lp := range choice.Logprobs.Content {
		assert.LessOrEqual(t, lp.Logprob, 0.0)
		assert.Len(t, lp.TopLogprobs, 2)
		assert.Equal(t, []int64{int64(lp.Token[0])}, lp.Bytes)
	}
	again, err := api.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	assert.Equal(t, choice.Message.Content, again.Choices[0].Message.Content)
	assert.Positive(t, again.Usage.PromptTokensDetails.CachedTokens)

	ask.N = openai.Int(2)
	ask.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	stream := api.Chat.Completions.NewStreaming(ctx, ask)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		require.True(t, acc.AddChunk(stream.Current()))
	}
	require.NoError(t, stream.Err())
	require.Len(t, acc.Choices, 2)
	for _, x := range acc.Choices {
		assert.Equal(t, choice.Message.Content, x.Message.Content)
		assert.Equal(t, "length", x.FinishReason)
		assert.Len(t, x.Logprobs.Content, 5)
	}
	assert.EqualValues(t, 10, acc.Usage.CompletionTokens)

	text, err := api.Completions.New(ctx, openai.CompletionNewParams{
		Model: "chain", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("ab")}, MaxTokens: openai.Int(3), Logprobs: openai.Int(2), Temperature: openai.Float(0), Echo: openai.Bool(true),
	})
	require.NoError(t, err)
	assert.Equal(t, "abcde", text.Choices[0].Text)
	assert.Len(t, text.Choices[0].Logprobs.TokenLogprobs, 5)
	pieces := api.Completions.NewStreaming(ctx, openai.CompletionNewParams{
		Model: "chain", Prompt: openai.CompletionNewParamsPromptUnion{OfArrayOfTokens: []int64{'a', 'b'}}, MaxTokens: openai.Int(3), Temperature: openai.Float(0),
	})
	said := ""
	for pieces.Next() {
		said += pieces.Current().Choices[0].Text
	}
	require.NoError(t, pieces.Err())
	assert.Equal(t, "cde", said)
}

func TestOfficialClientFormsAndTools(t *testing.T) {
	c := serveFor(t, toolModel(`{"place":"Rome"}`), nil)
	api, ctx := c.official(), t.Context()
	place := map[string]any{"type": "object", "properties": map[string]any{"place": map[string]any{"type": "string"}}, "required": []string{"place"}, "additionalProperties": false}

	got, err := api.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{
		Model: "default", Messages: say("Where?"),
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONSchema: &shared.ResponseFormatJSONSchemaParam{
			JSONSchema: shared.ResponseFormatJSONSchemaJSONSchemaParam{Name: "place", Schema: place, Strict: openai.Bool(true)},
		}},
	})
	require.NoError(t, err)
	var v struct{ Place string }
	require.NoError(t, json.Unmarshal([]byte(got.Choices[0].Message.Content), &v))
	assert.Equal(t, "Rome", v.Place)

	tools := []openai.ChatCompletionToolUnionParam{
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "weather", Parameters: place, Strict: openai.Bool(true)}),
		openai.ChatCompletionFunctionTool(shared.FunctionDefinitionParam{Name: "now"}),
	}
	ask := openai.ChatCompletionNewParams{
		Model: "default", Messages: say("Weather?"), Tools: tools,
		ToolChoice: openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("required")},
	}
	got, err = api.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)
	calls := got.Choices[0].Message.ToolCalls
	require.Len(t, calls, 2)
	assert.Equal(t, "tool_calls", got.Choices[0].FinishReason)
	assert.Equal(t, "weather", calls[0].Function.Name)
	assert.JSONEq(t, `{"place":"Rome"}`, calls[0].Function.Arguments)

	// The answer to the calls is a message that a client builds from the first.
	ask.Messages = append(ask.Messages, got.Choices[0].Message.ToParam(), openai.ToolMessage("sunny", calls[0].ID), openai.ToolMessage("noon", calls[1].ID))
	ask.ToolChoice = openai.ChatCompletionToolChoiceOptionUnionParam{OfAuto: openai.String("none")}
	_, err = api.Chat.Completions.New(ctx, ask)
	require.NoError(t, err)

	ask.ToolChoice = openai.ToolChoiceOptionFunctionToolChoice(openai.ChatCompletionNamedToolChoiceFunctionParam{Name: "weather"})
	stream := api.Chat.Completions.NewStreaming(ctx, ask)
	acc := openai.ChatCompletionAccumulator{}
	for stream.Next() {
		require.True(t, acc.AddChunk(stream.Current()))
	}
	require.NoError(t, stream.Err())
	require.Len(t, acc.Choices[0].Message.ToolCalls, 1)
	assert.JSONEq(t, `{"place":"Rome"}`, acc.Choices[0].Message.ToolCalls[0].Function.Arguments)

	r, err := api.Responses.New(ctx, oairesponses.ResponseNewParams{
		Model: "default", Instructions: openai.String("Be brief."), Input: oairesponses.ResponseNewParamsInputUnion{OfString: openai.String("Where?")},
	})
	require.NoError(t, err)
	assert.Equal(t, `{"place":"Rome"}`, r.OutputText())
	events := api.Responses.NewStreaming(ctx, oairesponses.ResponseNewParams{
		Model: "default", Input: oairesponses.ResponseNewParamsInputUnion{OfString: openai.String("Where?")},
	})
	said, last := "", ""
	for events.Next() {
		e := events.Current()
		if e.Type == "response.output_text.delta" {
			said += e.Delta
		}
		last = e.Type
	}
	require.NoError(t, events.Err())
	assert.Equal(t, r.OutputText(), said)
	assert.Equal(t, "response.completed", last)
}

// Errors are what the client makes its own errors of.
func TestOfficialClientErrors(t *testing.T) {
	c := serveFor(t, newEngine(t, &chain{next: alphabet}), func(c *Config) {
		c.Keys = []Key{{Name: "a", Secret: "a-secret-key", Limits: KeyLimits{RequestsPerMinute: 1}}}
	})
	chat := func(api openai.Client, change func(*openai.ChatCompletionNewParams)) *openai.Error {
		t.Helper()
		p := openai.ChatCompletionNewParams{Model: "chain", Messages: say("x"), MaxTokens: openai.Int(2)}
		change(&p)
		_, err := api.Chat.Completions.New(t.Context(), p)
		var e *openai.Error
		require.True(t, errors.As(err, &e), "%v", err)
		return e
	}
	as := func(*openai.ChatCompletionNewParams) {}
	assert.Equal(t, http.StatusUnauthorized, chat(c.official(), as).StatusCode)
	api := c.official(option.WithAPIKey("a-secret-key"))
	e := chat(api, func(p *openai.ChatCompletionNewParams) { p.Model = "gpt-9" })
	assert.Equal(t, http.StatusNotFound, e.StatusCode)
	assert.Equal(t, "model_not_found", e.Code)
	e = chat(api, func(p *openai.ChatCompletionNewParams) { p.Temperature = openai.Float(-1) })
	assert.Equal(t, http.StatusBadRequest, e.StatusCode)
	assert.Equal(t, "temperature", e.Param)
	assert.Equal(t, "invalid_request_error", e.Type)
	assert.NotEmpty(t, e.Message)

	_, err := api.Embeddings.New(t.Context(), openai.EmbeddingNewParams{Model: "chain", Input: openai.EmbeddingNewParamsInputUnion{OfString: openai.String("x")}})
	require.True(t, errors.As(err, &e), "%v", err)
	assert.Equal(t, http.StatusNotFound, e.StatusCode)
	assert.Contains(t, e.Message, "/v1/embeddings")

	_, err = api.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "chain", Messages: say("x"), MaxTokens: openai.Int(2)})
	require.NoError(t, err)
	e = chat(api, as)
	assert.Equal(t, http.StatusTooManyRequests, e.StatusCode)
	assert.NotEmpty(t, e.Response.Header.Get("Retry-After"))

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = api.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: "chain", Messages: say("x")})
	assert.ErrorIs(t, err, context.Canceled, fmt.Sprint(err))
}
