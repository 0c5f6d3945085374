package server

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/calderaml/caldera/engine"
)

// metrics are what GET /metrics shows (specification, 8). No label says anything of a request but its route and how it ended.
type metrics struct {
	registry *prometheus.Registry
	serve    http.Handler

	requests  *prometheus.CounterVec   // by route and status
	duration  *prometheus.HistogramVec // by route
	answers   *prometheus.CounterVec   // by why they ended
	prompts   prometheus.Counter       // tokens
	cached    prometheus.Counter       // of them
	generated prometheus.Counter       // tokens
	unknown   prometheus.Counter       // fields
	lost      prometheus.Counter
	first     prometheus.Histogram
	each      prometheus.Histogram
	queued    prometheus.Histogram
}

// Buckets from a millisecond to some minutes.
var (
	fineBuckets   = prometheus.ExponentialBuckets(0.001, 2, 14) // to 8 s
	coarseBuckets = prometheus.ExponentialBuckets(0.01, 2, 16)  // to 5 min
)

func newMetrics(s *Server) (*metrics, error) {
	const ns = "caldera"
	m := &metrics{registry: prometheus.NewRegistry()}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: ns, Name: name, Help: help})
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Name: name, Help: help, Buckets: buckets})
	}
	m.requests = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "requests_total", Help: "Requests answered. Status 499 is a client that went away."}, []string{"route", "status"})
	m.duration = prometheus.NewHistogramVec(prometheus.HistogramOpts{Namespace: ns, Name: "request_duration_seconds", Help: "Time from a request to the end of its answer.", Buckets: coarseBuckets}, []string{"route"})
	m.answers = prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Name: "answers_total", Help: "Answers of the model, by why they ended: stop, length, context, cancelled, error."}, []string{"reason"})
	for _, reason := range []string{engine.ReasonStop, engine.ReasonLength, engine.ReasonContext, engine.ReasonCancelled, engine.ReasonError} {
		m.answers.WithLabelValues(reason)
	}
	m.prompts = counter("prompt_tokens_total", "Tokens of prompts, those from the prefix cache included.")
	m.cached = counter("prompt_tokens_cached_total", "Tokens of prompts whose state was in the prefix cache.")
	m.generated = counter("generated_tokens_total", "Tokens of answers.")
	m.unknown = counter("unknown_fields_total", "Fields of requests that mean nothing to this server.")
	m.lost = counter("device_lost_total", "Times that a device was lost.")
	m.first = histogram("time_to_first_token_seconds", "Time from a request to the first token of its answer.", coarseBuckets)
	m.each = histogram("time_per_output_token_seconds", "Mean time between two tokens of an answer.", fineBuckets)
	m.queued = histogram("queue_seconds", "Time that a request waited for a slot.", coarseBuckets)
	list := []prometheus.Collector{
		m.requests, m.duration, m.answers, m.prompts, m.cached, m.generated, m.unknown, m.lost, m.first, m.each, m.queued,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	}
	gauge := func(name, help string, labels prometheus.Labels, value func(engine.Stats) float64) {
		list = append(list, prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, func() float64 {
			if v := s.model.Load(); v != nil {
				return value(v.Stats())
			}
			return 0
		}))
	}
	running := func(st engine.Stats) float64 { return float64(len(st.Running)) }
	waiting := func(st engine.Stats) float64 { return float64(st.Waiting) }
	idle := func(st engine.Stats) float64 { return float64(st.Slots - len(st.Running)) }
	usage := func(st engine.Stats) float64 {
		if st.Pages == 0 {
			return 0
		}
		return float64(st.PagesUsed) / float64(st.Pages)
	}
	gauge("caldera_requests_running", "Answers that have a slot.", nil, running)
	gauge("caldera_requests_waiting", "Answers that wait for a slot.", nil, waiting)
	gauge("caldera_slots", "Slots by state.", prometheus.Labels{"state": "busy"}, running)
	gauge("caldera_slots", "Slots by state.", prometheus.Labels{"state": "idle"}, idle)
	gauge("caldera_kv_cache_usage_ratio", "Share of the KV cache's pages that hold something.", nil, usage)
	if slices.Contains(s.cfg.MetricsCompat, "vllm") {
		name := prometheus.Labels{"model_name": s.cfg.Models[0]}
		gauge("vllm:num_requests_running", "caldera_requests_running by vLLM's name.", name, running)
		gauge("vllm:num_requests_waiting", "caldera_requests_waiting by vLLM's name.", name, waiting)
		gauge("vllm:kv_cache_usage_perc", "caldera_kv_cache_usage_ratio by vLLM's name.", name, usage)
		gauge("vllm:gpu_cache_usage_perc", "caldera_kv_cache_usage_ratio by vLLM's older name.", name, usage)
	}
	if slices.Contains(s.cfg.MetricsCompat, "llamacpp") {
		gauge("llamacpp:requests_processing", "caldera_requests_running by llama-server's name.", nil, running)
		gauge("llamacpp:requests_deferred", "caldera_requests_waiting by llama-server's name.", nil, waiting)
		list = append(list,
			same{m.prompts, "llamacpp:prompt_tokens_total", "caldera_prompt_tokens_total by llama-server's name."}.collector(),
			same{m.generated, "llamacpp:tokens_predicted_total", "caldera_generated_tokens_total by llama-server's name."}.collector())
	}
	list = append(list, &memoryCollector{s, prometheus.NewDesc("caldera_device_memory_bytes", "Memory of the engine, by what for.", []string{"device", "kind"}, nil)})
	for _, c := range list {
		if err := m.registry.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	m.serve = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m, nil
}

// answered counts a request.
func (m *metrics) answered(route string, status int, took time.Duration) {
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.duration.WithLabelValues(route).Observe(took.Seconds())
}

// ended counts an answer.
func (m *metrics) ended(r *engine.Result) {
	m.answers.WithLabelValues(r.Reason).Inc()
	m.prompts.Add(float64(r.PromptTokens))
	m.cached.Add(float64(r.Reused))
	m.generated.Add(float64(r.Tokens))
	m.queued.Observe(r.Queued.Seconds())
	if r.Tokens > 0 {
		m.first.Observe((r.Queued + r.PromptTime).Seconds())
	}
	if r.Tokens > 1 {
		m.each.Observe(r.Time.Seconds() / float64(r.Tokens-1))
	}
}

// same is a counter by another name.
type same struct {
	of         prometheus.Counter
	name, help string
}

func (c same) collector() prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: c.name, Help: c.help}, func() float64 {
		var m dto.Metric
		if err := c.of.Write(&m); err != nil {
			return 0
		}
		return m.GetCounter().GetValue()
	})
}

// memoryCollector tells what memory is used for.
type memoryCollector struct {
	s    *Server
	desc *prometheus.Desc
}

func (c *memoryCollector) Describe(ch chan<- *prometheus.Desc) { ch <- c.desc }

func (c *memoryCollector) Collect(ch chan<- prometheus.Metric) {
	m := c.s.model.Load()
	if m == nil {
		return
	}
	name := m.DeviceInfo().Name
	if name == "" {
		name = m.Device()
	}
	for _, u := range c.s.memory(m) {
		ch <- prometheus.MustNewConstMetric(c.desc, prometheus.GaugeValue, float64(u.Bytes), name, u.Kind)
	}
}

// serveMetrics is GET /metrics.
func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	s.metrics.serve.ServeHTTP(w, r)
	return nil
}
