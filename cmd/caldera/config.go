package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/calderaml/caldera/engine"
	"github.com/calderaml/caldera/engine/weights"
	"github.com/calderaml/caldera/vk"
)

// Config is every setting, as flags, environment, configuration file and defaults make it. A setting's name in
// a file is its key here, with a dot between a section and its keys; in the environment it is CALDERA_ and the
// key in upper case, with underscores for dots and dashes. What describes one call only (inputs, outputs,
// --json) is a flag and no setting.
type Config struct {
	Model        string `mapstructure:"model"` // path or repository, empty for the built-in demo
	Backend      string `mapstructure:"backend"`
	Device       string `mapstructure:"device"`
	Split        string `mapstructure:"split"`
	DeviceMemory string `mapstructure:"device-memory"` // sizes, see parseSizes
	Profile      string `mapstructure:"profile"`
	Residency    string `mapstructure:"residency"`
	Ctx          int    `mapstructure:"ctx"`
	KV           string `mapstructure:"kv"`
	KVSink       int    `mapstructure:"kv-sink"`
	KVWindow     int    `mapstructure:"kv-window"`
	Batch        int    `mapstructure:"batch"`
	MemoryLimit  string `mapstructure:"memory-limit"` // a size, see parseSize
	Slots        int    `mapstructure:"slots"`        // 0: what the command needs
	Queue        int    `mapstructure:"queue"`
	MaxLatency   string `mapstructure:"max-latency"`   // a duration
	SubmitBudget string `mapstructure:"submit-budget"` // a duration or auto
	HangTimeout  string `mapstructure:"hang-timeout"`  // likewise
	Activations  string `mapstructure:"activations"`
	Matrices     bool   `mapstructure:"matrices"`
	Tuning       string `mapstructure:"tuning"`
	SelfTest     string `mapstructure:"self-test"`
	CacheRAM     string `mapstructure:"cache-ram"`  // a size or autoSize
	CacheDisk    string `mapstructure:"cache-disk"` // a folder and a size, see parseFolderSize
	CacheEvery   int    `mapstructure:"cache-every"`
	TokenizerNFC bool   `mapstructure:"tokenizer-nfc"`
	ChatTemplate string `mapstructure:"chat-template-file"`
	TrustSpecial bool   `mapstructure:"trust-special-tokens"`

	Temp             float64 `mapstructure:"temp"`
	TopK             int     `mapstructure:"top-k"`
	TopP             float64 `mapstructure:"top-p"`
	MinP             float64 `mapstructure:"min-p"`
	RepeatPenalty    float64 `mapstructure:"repeat-penalty"`
	PresencePenalty  float64 `mapstructure:"presence-penalty"`
	FrequencyPenalty float64 `mapstructure:"frequency-penalty"`
	RepeatLastN      int     `mapstructure:"repeat-last-n"`
	Seed             int64   `mapstructure:"seed"` // negative: a new one each time

	Run struct {
		Predict   int  `mapstructure:"predict"`
		NoThink   bool `mapstructure:"no-think"`
		Raw       bool `mapstructure:"raw"`
		IgnoreEOS bool `mapstructure:"ignore-eos"`
	} `mapstructure:"run"`
	Bench struct {
		Prompt      []string `mapstructure:"n-prompt"`
		Gen         []string `mapstructure:"n-gen"`
		Depth       []string `mapstructure:"n-depth"`
		Batch       []string `mapstructure:"batch"`
		Repetitions int      `mapstructure:"repetitions"`
		Output      string   `mapstructure:"output"`
	} `mapstructure:"bench"`
	Perplexity struct {
		Chunk int `mapstructure:"chunk"`
	} `mapstructure:"perplexity"`
	Verify struct {
		Tokens int `mapstructure:"tokens"`
	} `mapstructure:"verify"`
	Serve struct {
		Host            string   `mapstructure:"host"`
		Port            int      `mapstructure:"port"`
		Alias           []string `mapstructure:"alias"`
		AnyModel        bool     `mapstructure:"any-model"`
		APIKeyFile      string   `mapstructure:"api-key-file"`
		KeyRate         float64  `mapstructure:"key-rate"` // requests a second
		AllowHost       []string `mapstructure:"allow-host"`
		CORSOrigin      []string `mapstructure:"cors-origin"`
		TLSCert         string   `mapstructure:"tls-cert"`
		TLSKey          string   `mapstructure:"tls-key"`
		MaxBody         string   `mapstructure:"max-body"` // a size
		Predict         int      `mapstructure:"predict"`
		Ping            string   `mapstructure:"ping"` // these are durations
		WriteTimeout    string   `mapstructure:"write-timeout"`
		Grace           string   `mapstructure:"grace"`
		ReasoningFormat string   `mapstructure:"reasoning-format"`
		ToolCallInThink bool     `mapstructure:"tool-call-in-think"`
		MetricsCompat   []string `mapstructure:"metrics-compat"`
		LogPrompts      bool     `mapstructure:"log-prompts"`
		Embeddings      bool     `mapstructure:"embeddings"`
	} `mapstructure:"serve"`

	Color     string `mapstructure:"color"`
	LogFormat string `mapstructure:"log-format"`
	LogLevel  string `mapstructure:"log-level"`
	Quiet     bool   `mapstructure:"quiet"`
	Offline   bool   `mapstructure:"offline"`
}

// A setting is one key of Config. The flag's name is the last part of the key.
type setting struct {
	key     string
	short   string
	def     any
	usage   string
	choices []string
	check   func(string) error // of a text that is more than a word
}

func (s setting) flag() string { return s.key[strings.LastIndexByte(s.key, '.')+1:] }

// env is the environment variable of a setting.
func (s setting) env() string {
	return "CALDERA_" + strings.NewReplacer(".", "_", "-", "_").Replace(strings.ToUpper(s.key))
}

// table is every setting.
var table = []setting{
	{key: "model", short: "m", def: "", usage: "`model`: a GGUF file (of a split one any part), a folder with one, or user/repo[:quant] in the Hugging Face cache; default the built-in demo"},
	{key: "backend", def: "vulkan", choices: []string{"vulkan", "reference"}, usage: "`where` to compute: vulkan, or reference for plain Go on the CPU"},
	{key: "device", short: "d", def: "", usage: "device by `name`, UUID or index of caldera devices; default the best one; several, A,B, share the model's layers"},
	{key: "split", def: engine.SplitAuto, usage: "`where` the layers are divided among several devices: the first layer of each but the first (20), shares (0.5,0.5), or auto by measured speed and by memory"},
	{key: "device-memory", def: "", check: checkSizes, usage: "most memory to take on each of several devices, pages of the model file among it, `SIZES` as in 12G,8G; 0 is what there is"},
	{key: "profile", def: "auto", choices: vk.ProfileNames(), usage: "use no more of the device than this `profile` has: " + strings.Join(vk.ProfileNames(), ", ")},
	{key: "residency", def: weights.Auto, choices: []string{weights.Auto, weights.Import, weights.Copy}, usage: "`where` weights live: import reads the file's pages in place, copy gives the device its own, auto imports where the device computes in the host's memory"},
	{key: "ctx", short: "c", def: 0, usage: "most `tokens` of a sequence; 0 is what the command needs or 4096, within the model's limit"},
	{key: "kv", def: "f16", choices: []string{"f16", "f32", "q8_0", "q4_0"}, usage: "`type` of the attention cache: f16, f32, q8_0 or q4_0; of the last two the beginning and the recent tokens stay f16"},
	{key: "kv-sink", def: engine.DefaultKVSink, usage: "with --kv q8_0 or q4_0: the first `N` tokens, rounded up to whole pages of 256, stay f16"},
	{key: "kv-window", def: engine.DefaultKVWindow, usage: "with --kv q8_0 or q4_0: the last `N` tokens stay f16, beside the page of 256 that is being filled"},
	{key: "batch", short: "b", def: 0, usage: "most `rows` (tokens) of a step, 1 to 512; 0 is 512, or 64 on a software device"},
	{key: "submit-budget", def: "auto", check: checkBudget, usage: "`time` that a submission should occupy the device at most, as in 200ms: longer steps are divided; 0 is no limit, auto 500ms on a GPU and none on a software device"},
	{key: "hang-timeout", def: "auto", check: checkHang, usage: "`time` after which a submission that has not ended counts as a hang, and the device as lost: auto 1m on a GPU and 10m on a software device"},
	{key: "activations", def: engine.ActivationsAuto, choices: []string{engine.ActivationsAuto, engine.ActivationsF32, engine.ActivationsInt8}, usage: "`what` products with weights take: f32, or int8, whole numbers that are faster on some devices, with weights of Q4_K, Q5_K and Q6_K; auto is int8 where it is faster"},
	{key: "matrices", def: false, usage: "form products with cooperative matrices in steps of many rows; tokens may then depend on what else runs, within rounding"},
	{key: "tuning", def: "auto", choices: []string{"auto", "off"}, usage: "`whether` to use what caldera tune has found for the device: auto or off"},
	{key: "self-test", def: engine.SelfTestOff, choices: []string{engine.SelfTestAuto, engine.SelfTestAlways, engine.SelfTestOff}, usage: "`when` to compare kernels with plain Go before they are used: auto is those that have not passed on the device before, always, or off"},
	{key: "memory-limit", def: "0", check: checkSize, usage: "most memory to take beside the pages of the model file, a `size` as in 8G or 512MiB; 0 is what there is"},
	{key: "slots", def: 0, usage: "sequences `N` that run at a time, 1 to 64; 0 is 4 for serve, up to 16 with --parallel, as they fit, and else 1"},
	{key: "queue", def: 64, usage: "`N` requests wait for a slot; serve refuses more, --parallel reads no further"},
	{key: "max-latency", def: "0", check: checkLatency, usage: "bound the `time` between two tokens of a sequence, as in 200ms, by feeding less of other prompts at once; 0 is no bound"},
	{key: "cache-ram", def: autoSize, check: checkAutoSize, usage: "memory for the prefix cache, a `size`; 0 is none, auto none for a single prompt and else 1 GiB or a quarter of what is available"},
	{key: "cache-disk", def: "", check: checkFolderSize, usage: "keep the prefix cache in a folder too, `DIR:SIZE`, where later runs find it"},
	{key: "cache-every", def: 512, usage: "tokens `N` between the snapshots that the prefix cache keeps inside a long prompt; 0 is none there"},
	{key: "tokenizer-nfc", def: true, usage: "bring text into Unicode form C before tokenizing, as the models were trained; llama.cpp does not"},

	{key: "chat-template-file", def: "", usage: "put conversations into the form that the template in this `file` gives them, instead of the model's own"},
	{key: "trust-special-tokens", def: false, usage: "take control tokens such as <|im_end|> in a prompt's text for what they are; otherwise they are text, and only the chat template writes them"},
	{key: "temp", def: 0.7, usage: "temperature `T`, 0 to 2; 0 always takes the best token, as the built-in demo does unless told"},
	{key: "top-k", def: 20, usage: "keep the best `K` tokens; 0 keeps all"},
	{key: "top-p", def: 0.8, usage: "keep the best tokens that together have probability `P`; 1 keeps all"},
	{key: "min-p", def: 0.0, usage: "drop tokens less likely than `P` times the best one"},
	{key: "repeat-penalty", def: 1.0, usage: "divide the logits of repeated tokens by `X`; 1 is off"},
	{key: "presence-penalty", def: 0.0, usage: "subtract `X` from the logits of tokens seen before, -2 to 2"},
	{key: "frequency-penalty", def: 0.0, usage: "subtract `X` from a token's logit for each time it was seen, -2 to 2"},
	{key: "repeat-last-n", def: 64, usage: "the last `N` tokens are what the penalties look at; 0 is none, -1 all"},
	{key: "seed", def: int64(-1), usage: "start `N` of the random numbers: the same one gives the same text; -1 takes a new one"},

	{key: "run.predict", short: "n", def: -1, usage: "most tokens `N` to generate; -1 goes on until the model ends or the context is full"},
	{key: "run.no-think", def: false, usage: "have the chat template close the model's thinking before it begins"},
	{key: "run.raw", def: false, usage: "take the prompt as it is instead of putting it into the model's chat form"},
	{key: "run.ignore-eos", def: false, usage: "go on when the model ends its answer"},

	{key: "bench.n-prompt", short: "p", def: []string{"512"}, usage: "prompt lengths to measure, `N,...`; 0 is none; ranges as 1-8, 64-256+64, 1-512*2"},
	{key: "bench.n-gen", short: "n", def: []string{"128"}, usage: "numbers of generated tokens to measure, `N,...`; 0 is none"},
	{key: "bench.n-depth", short: "d", def: []string{"0"}, usage: "tokens already in the context, `N,...`"},
	{key: "bench.batch", short: "b", def: []string{"512"}, usage: "most rows (tokens) of a step, `N,...`, 1 to 512"},
	{key: "bench.repetitions", short: "r", def: 5, usage: "repeat each test `N` times"},
	{key: "bench.output", short: "o", def: "md", choices: []string{"md", "json", "jsonl", "csv"}, usage: "output `format`: md, json, jsonl or csv"},

	{key: "perplexity.chunk", def: 512, usage: "`tokens` of a chunk, each scored from a fresh state"},
	{key: "verify.tokens", def: 24, usage: "`N` tokens to run through the device and the reference"},

	{key: "serve.host", def: "127.0.0.1", usage: "listen on this `address`, 0.0.0.0 for all, or unix:PATH for a socket"},
	{key: "serve.port", def: 8080, usage: "listen on this `port`; 0 is any free one, which the log tells"},
	{key: "serve.alias", def: []string{}, usage: "the model goes by these `names`, separated by commas; default its file's name"},
	{key: "serve.any-model", def: false, usage: "take every name of a model for the one there is"},
	{key: "serve.api-key-file", def: "", usage: "read API keys from a `file`, beside those of CALDERA_API_KEY"},
	{key: "serve.key-rate", def: 0.0, usage: "`requests` a second that each key may send, or all together without keys; 0 is no bound"},
	{key: "serve.allow-host", def: []string{}, usage: "on this machine's own addresses, answer requests for these host `names` too"},
	{key: "serve.cors-origin", def: []string{}, usage: "let pages of these `sites` use the server, as in https://example.com"},
	{key: "serve.tls-cert", def: "", usage: "a PEM `file` with the certificate for TLS, read again at SIGHUP"},
	{key: "serve.tls-key", def: "", usage: "a PEM `file` with its key"},
	{key: "serve.max-body", def: "16M", check: checkSomeSize, usage: "the most bytes of a request, a `size`"},
	{key: "serve.predict", short: "n", def: 0, usage: "most tokens `N` of an answer whose request does not say; 0 is until the context is full"},
	{key: "serve.ping", def: "15s", check: checkLatency, usage: "the `time` between signs of life of a stream that waits; 0 is none"},
	{key: "serve.write-timeout", def: "30s", check: checkLatency, usage: "end an answer whose client takes nothing for this `time`"},
	{key: "serve.grace", def: "30s", check: checkLatency, usage: "the `time` that running answers have when the server is told to end"},
	{key: "serve.reasoning-format", def: "auto", choices: []string{"auto", "none"}, usage: "`form` of the model's thinking: auto tells it apart from the answer, none leaves it in with its tags"},
	{key: "serve.tool-call-in-think", def: true, usage: "take a complete tool call inside the model's thinking for one"},
	{key: "serve.metrics-compat", def: []string{}, usage: "offer metrics by the names of these `engines` too: vllm, llamacpp"},
	{key: "serve.log-prompts", def: false, usage: "put prompts into the log"},
	{key: "serve.embeddings", def: false, usage: "offer /v1/embeddings; chat models make poor ones"},

	{key: "color", def: "auto", choices: []string{"auto", "always", "never"}, usage: "colour, `when`: auto, always or never"},
	{key: "log-format", def: "auto", choices: []string{"auto", "console", "json"}, usage: "`format` of log lines on stderr: auto (console on a terminal, else json), console or json"},
	{key: "log-level", def: "warn", choices: []string{"trace", "debug", "info", "warn", "error", "disabled"}, usage: "least `level` of log lines: trace, debug, info, warn, error or disabled"},
	{key: "quiet", short: "q", def: false, usage: "no facts and no progress on stderr, only warnings and errors"},
	{key: "offline", def: true, usage: "use what is on this machine; the only mode so far: nothing is ever downloaded"},
}

// find returns a setting.
func find(key string) setting {
	i := slices.IndexFunc(table, func(s setting) bool { return s.key == key })
	if i < 0 {
		panic("no setting " + key) // a mistake in this package, found by any test
	}
	return table[i]
}

// addSettings defines the flags of settings on a command. A key that ends in "!" has its flag without the
// letter, which the command uses for another.
func addSettings(f *pflag.FlagSet, keys ...string) {
	for _, key := range keys {
		key, plain := strings.CutSuffix(key, "!")
		s := find(key)
		if plain {
			s.short = ""
		}
		switch d := s.def.(type) {
		case string:
			f.StringP(s.flag(), s.short, d, s.usage)
		case int:
			f.IntP(s.flag(), s.short, d, s.usage)
		case int64:
			f.Int64P(s.flag(), s.short, d, s.usage)
		case float64:
			f.Float64P(s.flag(), s.short, d, s.usage)
		case bool:
			f.BoolP(s.flag(), s.short, d, s.usage)
		case []string:
			f.StringSliceP(s.flag(), s.short, d, s.usage)
		}
		// The settings of a command are found by the flag's own annotation: two sections may share a name.
		f.Lookup(s.flag()).Annotations = map[string][]string{settingAnnotation: {s.key}}
	}
}

const settingAnnotation = "caldera_setting"

// settings is a loaded configuration and where each value came from.
type settings struct {
	cfg    Config
	file   string            // the configuration file, if one was read
	source map[string]string // "flag", "env", "file" or "default", by key
	values map[string]any
	// strange says of variables of the environment that they look like settings and are none.
	strange []string
}

// loadSettings reads the configuration for a command whose flags have been parsed.
func loadSettings(cmd *cobra.Command) (*settings, error) {
	s := &settings{source: map[string]string{}, values: map[string]any{}}
	v := viper.New()
	for _, x := range table {
		v.SetDefault(x.key, x.def)
		s.source[x.key] = "default"
		if err := v.BindEnv(x.key, x.env()); err != nil {
			return nil, err
		}
	}
	if err := s.readFile(cmd, v); err != nil {
		return nil, err
	}
	for _, x := range table {
		if os.Getenv(x.env()) != "" {
			s.source[x.key] = "env"
		}
	}
	var err error
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		key := f.Annotations[settingAnnotation]
		if len(key) == 0 || err != nil {
			return
		}
		err = v.BindPFlag(key[0], f)
		if f.Changed {
			s.source[key[0]] = "flag"
		}
	})
	if err != nil {
		return nil, err
	}
	if err := v.UnmarshalExact(&s.cfg); err != nil {
		where := "configuration"
		if s.file != "" {
			where += " (file " + s.file + ")"
		}
		what := strings.TrimSpace(strings.TrimPrefix(err.Error(), "decoding failed due to the following error(s):"))
		return nil, fmt.Errorf("%s: %s", where, what)
	}
	for _, x := range table {
		s.values[x.key] = v.Get(x.key)
		if len(x.choices) > 0 && !slices.Contains(x.choices, v.GetString(x.key)) {
			return nil, fmt.Errorf("%s is %q; use %s", s.name(x), v.GetString(x.key), strings.Join(x.choices, ", "))
		}
		if x.check != nil {
			if err := x.check(v.GetString(x.key)); err != nil {
				return nil, fmt.Errorf("%s: %w", s.name(x), err)
			}
		}
	}
	s.strange = strangeVariables(os.Environ())
	if !s.cfg.Offline {
		return nil, fmt.Errorf("%s is false, but this version downloads nothing: get models with hf download", s.name(find("offline")))
	}
	return s, nil
}

// strangeVariables finds variables that look like misspelt settings.
func strangeVariables(environment []string) (found []string) {
	var names []string
	for _, x := range table {
		names = append(names, x.env())
	}
	for _, e := range environment {
		name, _, _ := strings.Cut(e, "=")
		if !strings.HasPrefix(name, "CALDERA_") || slices.Contains(names, name) || slices.Contains(otherVariables, name) {
			continue
		}
		if near := nearest(name, names); near != "" {
			found = append(found, fmt.Sprintf("the variable %s is no setting; did you mean %s?", name, near))
		}
	}
	slices.Sort(found)
	return found
}

// otherVariables are read elsewhere and are no settings.
var otherVariables = []string{"CALDERA_CONFIG", "CALDERA_API_KEY", "CALDERA_CACHE_DIR", "CALDERA_VALIDATION"}

// name says what the user would recognise a setting by.
func (s *settings) name(x setting) string {
	switch s.source[x.key] {
	case "env":
		return x.env()
	case "file":
		return x.key + " in " + s.file
	}
	return "--" + x.flag()
}

// readFile reads the configuration file, if there is one, and refuses keys that do not exist.
func (s *settings) readFile(cmd *cobra.Command, v *viper.Viper) error {
	path, err := configFile(cmd)
	if err != nil || path == "" {
		return err
	}
	if err := readable(path); err != nil {
		return fmt.Errorf("configuration file %s: %w", path, err)
	}
	for _, r := range []*viper.Viper{v, viper.New()} {
		r.SetConfigFile(path)
		if err := r.ReadInConfig(); err != nil {
			return fmt.Errorf("configuration file %s: %w", path, err)
		}
		if r == v {
			continue
		}
		for _, key := range r.AllKeys() {
			if !slices.ContainsFunc(table, func(x setting) bool { return x.key == key }) {
				return unknownKey(path, key)
			}
			s.source[key] = "file"
		}
	}
	s.file = path
	return nil
}

func unknownKey(path, key string) error {
	var keys []string
	for _, x := range table {
		keys = append(keys, x.key)
	}
	hint := "caldera config show lists the settings"
	if near := nearest(key, keys); near != "" {
		hint = fmt.Sprintf("did you mean %q?", near)
	}
	return fmt.Errorf("configuration file %s: unknown setting %q; %s", path, key, hint)
}

// maxConfig is the most bytes of a configuration file.
const maxConfig = 1 << 20

// readable refuses what reading would never come to the end of, or only with much memory. What does not exist is
// left to the reader.
func readable(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil
	case !info.Mode().IsRegular():
		return errors.New("is no regular file")
	case info.Size() > maxConfig:
		return fmt.Errorf("has %d bytes, more than the %d of a configuration", info.Size(), maxConfig)
	}
	return nil
}

// configFile returns the path of the configuration file, or nothing.
func configFile(cmd *cobra.Command) (string, error) {
	path, err := cmd.Flags().GetString("config")
	if err != nil {
		return "", err
	}
	if path == "" {
		path = os.Getenv("CALDERA_CONFIG")
	}
	if path != "" {
		switch ext := filepath.Ext(path); ext {
		case ".yaml", ".yml", ".toml":
			return path, nil
		default:
			return "", fmt.Errorf("configuration file %s: a name must end in .yaml or .toml", path)
		}
	}
	candidates := []string{"caldera.yaml", "caldera.toml"}
	if dir, err := os.UserConfigDir(); err == nil {
		candidates = append(candidates, filepath.Join(dir, "caldera", "caldera.yaml"), filepath.Join(dir, "caldera", "caldera.toml"))
	}
	for _, c := range candidates {
		if _, err := os.Stat(c); err == nil {
			return c, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("configuration file %s: %w", c, err)
		}
	}
	return "", nil
}

// isDefault reports whether nobody chose the value of a setting.
func (a *app) isDefault(key string) bool { return a.settings.source[key] == "default" }
