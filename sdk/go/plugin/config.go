package plugin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"
)

// Config is a plugin's configuration: text or a structure, in the form that the order has, or absent.
//
// It may hold secrets: printing it shows its size and not its content.
type Config struct {
	text    string
	fields  *structpb.Struct
	present bool
}

// A Validator is a type that checks itself after it was decoded; see [Config.Decode].
type Validator interface {
	// Validate says what is wrong. Its text is shown to operators.
	Validate() error
}

// TextConfig is a configuration that is text.
func TextConfig(text string) Config { return Config{text: text, present: true} }

// StructConfig is a configuration that is a structure, like a JSON object.
func StructConfig(fields map[string]any) (Config, error) {
	made, err := structpb.NewStruct(fields)
	if err != nil {
		return Config{}, fmt.Errorf("not a structure: %w", err)
	}
	return structConfig(made), nil
}

func structConfig(fields *structpb.Struct) Config { return Config{fields: fields, present: true} }

// IsPresent says whether there is a configuration at all.
func (c Config) IsPresent() bool { return c.present }

// IsStruct says whether the configuration is a structure.
func (c Config) IsStruct() bool { return c.fields != nil }

// Text is the configuration as text: the text itself, or the structure as JSON; empty where there is none.
func (c Config) Text() (string, error) {
	if c.fields == nil {
		return c.text, nil
	}
	text, err := json.Marshal(c.fields.AsMap())
	if err != nil {
		// A number that is infinite or none.
		return "", &BadConfig{Reason: "a value has no form in JSON"}
	}
	return string(text), nil
}

// Decode reads the configuration into a type of the plugin's own with [encoding/json]: the text as JSON, or the structure as
// the JSON object it stands for. Fields that the configuration does not have keep what they were, so a value with the
// defaults can be passed; without a configuration all keep it. Then a [Validator] checks itself.
//
// An error is a [*BadConfig], which names the place and never a value.
func (c Config) Decode(into any) error { return c.decode(into, false) }

// DecodeStrict is [Config.Decode] that refuses fields which the type does not have.
func (c Config) DecodeStrict(into any) error { return c.decode(into, true) }

func (c Config) decode(into any, strict bool) error {
	if c.present {
		text, err := c.Text()
		if err != nil {
			return err
		}
		decoder := json.NewDecoder(strings.NewReader(text))
		if strict {
			decoder.DisallowUnknownFields()
		}
		if err := decoder.Decode(into); err != nil {
			return c.located(text, decoder, err)
		}
		if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
			return &BadConfig{Reason: "there is more after the JSON value"}
		}
	}
	if checked, ok := into.(Validator); ok {
		if err := checked.Validate(); err != nil {
			return BadConfigf("%v", err)
		}
	}
	return nil
}

// located keeps the place of an error and drops its text, which may quote values.
func (c Config) located(text string, decoder *json.Decoder, err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		field := wrongType.Field
		if field == "" {
			field = "the whole"
		}
		return BadConfigf("%s has to be %s%s", field, named(wrongType.Type), c.place(text, wrongType.Offset))
	}
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		return BadConfigf("not valid JSON%s", c.place(text, syntax.Offset))
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return &BadConfig{Reason: "not valid JSON: it ends too early"}
	}
	if field, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return BadConfigf("there is no field %s", field)
	}
	// Of a type that decodes itself; its text may quote what it read.
	return BadConfigf("a value does not fit%s", c.place(text, decoder.InputOffset()))
}

// place is the line and column of an offset in a text; a structure has no such places.
func (c Config) place(text string, offset int64) string {
	if c.fields != nil {
		return ""
	}
	before := text[:min(int(max(offset, 0)), len(text))]
	line := strings.Count(before, "\n") + 1
	return fmt.Sprintf(" (line %d, column %d)", line, len(before)-strings.LastIndex(before, "\n")-1)
}

func named(wanted reflect.Type) string {
	switch wanted.Kind() {
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number that fits"
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "a whole number from 0 on that fits"
	case reflect.Float32, reflect.Float64:
		return "a number"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		return "a text"
	case reflect.Slice, reflect.Array:
		return "a list"
	default:
		return "an object"
	}
}

// vmEvent is the news of the machine that a request to apply holds, if it does not hold a configuration.
func (c Config) vmEvent() (VMEvent, bool) {
	// The command socket takes keys in any case and passes the bytes on unchanged; so does encoding/json.
	var news struct{ Command, Event *string }
	if !c.present || c.fields != nil || !bytes.HasPrefix(bytes.TrimSpace([]byte(c.text)), []byte("{")) {
		return "", false
	}
	if json.Unmarshal([]byte(c.text), &news) != nil || news.Command == nil || news.Event == nil {
		return "", false
	}
	return VMEvent(*news.Event), *news.Command == "VmEvent"
}

// String shows the size and not the content.
func (c Config) String() string {
	switch {
	case !c.present:
		return "Config(absent)"
	case c.fields != nil:
		return fmt.Sprintf("Config(%d fields)", len(c.fields.GetFields()))
	default:
		return fmt.Sprintf("Config(%d bytes)", len(c.text))
	}
}

// GoString shows the size and not the content.
func (c Config) GoString() string { return c.String() }

// LogValue shows the size and not the content.
func (c Config) LogValue() slog.Value { return slog.StringValue(c.String()) }
