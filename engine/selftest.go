package engine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/calderaml/caldera/engine/selftest"
	"github.com/calderaml/caldera/scheduler"
	"github.com/calderaml/caldera/vk"
)

// When a device's kernels are compared with their twins at open.
const (
	SelfTestAuto   = "auto"   // those that have not passed on the device before
	SelfTestAlways = "always" // all of them
	SelfTestOff    = "off"    // none
)

// ErrSelfTest reports that a device computes wrongly whatever kernels it is given.
var ErrSelfTest = errors.New("self-test failed")

// A SelfTestCheck is the verdict on a kernel as the device compiles it.
type SelfTestCheck struct {
	selftest.Result
	Without string // what was left out of the device's kernels at the time, "" for nothing
}

// A SelfTestReport is what comparing a device's kernels with their twins has found.
type SelfTestReport struct {
	Device   string
	Profile  string
	Rejected []string        // features that the driver reports, and refuses
	Checks   []SelfTestCheck // in the order in which they were made
	Untested []string        // kernels in use that no check has: they stay in use
	Without  string          // what is left out in the end, "" for nothing
	Rungs    int             // how many rungs of the ladder that is
	Took     time.Duration

	err error // why no kernels are left
}

// OK reports whether the device has right kernels, with or without leaving some out.
func (r *SelfTestReport) OK() bool { return r.err == nil }

// Err is why the device has none, nil if it has.
func (r *SelfTestReport) Err() error { return r.err }

// Failed are the checks that were not passed.
func (r *SelfTestReport) Failed() (cs []SelfTestCheck) {
	for _, c := range r.Checks {
		if !c.OK {
			cs = append(cs, c)
		}
	}
	return cs
}

// SelfTest compares the kernels that a model would use on a device with their twins, all of them whatever is known, and keeps
// what it finds for [Open] in the configuration's SelfTestDir. It reads the model's header alone and takes little memory.
// That kernels are wrong is no error of SelfTest but one of the report.
func SelfTest(ctx context.Context, cfg Config) (_ *SelfTestReport, err error) {
	b, err := OpenBlueprint(cfg)
	if err != nil {
		return nil, err
	}
	defer b.Close()
	fault, reject, err := cfg.driverFaults()
	if err != nil {
		return nil, err
	}
	in, err := vk.Open(vk.Config{AppName: "caldera", Reject: reject})
	if err != nil {
		return nil, err
	}
	defer in.Close()
	info, err := in.Select(cfg.Device)
	if err != nil {
		return nil, err
	}
	p := b.p
	if err := p.on(info); err != nil {
		return nil, err
	}
	p.devices = in.Devices()
	t := &selfTester{planner: p, in: in, site: p.sites[0], fault: fault, known: selftest.NewVerdicts()}
	defer func() { err = errors.Join(err, t.close()) }()
	without, err := t.open(t.profile)
	if err != nil {
		return nil, err
	}
	if err := t.run(ctx, t.profile.WithoutFeatures(without)); err != nil && !errors.Is(err, ErrSelfTest) {
		return nil, err
	}
	return &t.report, t.keep(cfg.SelfTestDir)
}

// driverFaults are what a configuration injects: a fault of the driver's compiler, and features that it refuses.
func (c *Config) driverFaults() (scheduler.Fault, vk.Features, error) {
	if names, ok := strings.CutPrefix(c.Fault, "reject:"); ok {
		f, unknown := vk.FeaturesOf(strings.Split(names, ","))
		if unknown != "" {
			return "", f, fmt.Errorf("fault %q: there is no feature %q", c.Fault, unknown)
		}
		return "", f, nil
	}
	f, err := scheduler.ParseFault(c.Fault)
	if err != nil {
		err = fmt.Errorf("%w, or reject: and names of features", err)
	}
	return f, vk.Features{}, err
}

// openInstance opens Vulkan.
func (e *Engine) openInstance() (err error) {
	_, reject, err := e.cfg.driverFaults()
	if err == nil {
		e.instance, err = vk.Open(vk.Config{AppName: "caldera", Reject: reject, Faults: e.cfg.faults})
	}
	return err
}

// openTested makes a die that the driver takes, with kernels that are right on it, and returns it with the profile that it was
// found to need.
func (e *Engine) openTested(s site) (*scheduler.Die, vk.Profile, error) {
	p := s.profile
	fault, _, err := e.cfg.driverFaults()
	if err != nil {
		return nil, p, err
	}
	t := &selfTester{in: e.instance, site: s, fault: fault, known: selftest.NewVerdicts()}
	t.planner = planner{file: e.file, model: e.model, cfg: e.cfg, sites: []site{s}}
	without, err := t.open(p)
	if err != nil {
		return nil, p, err
	}
	if without.Any() {
		p = p.WithoutFeatures(without)
		e.warn(fmt.Errorf("%s: the driver reports %s, but makes no device with it: running without; another version of the driver may help",
			s.info.Name, strings.Join(without.Names(), ", ")))
	}
	packs := e.model.Packs
	// A kernel that is broken for Verify to find is not to be found here.
	if e.cfg.SelfTest != SelfTestOff && e.cfg.BreakKernel == "" {
		err = e.selfTest(t, p)
	}
	e.model.Packs = packs // as planned, until it is planned again
	tested := selftest.Restrict(p, t.report.Rungs)
	die := t.die
	if err == nil {
		die, err = t.dieFor(tested)
	}
	if err == nil {
		err = die.Device.FreeStaging()
	}
	if err != nil {
		return nil, p, errors.Join(err, t.close())
	}
	die.Kernels = scheduler.Kernels(tested) // the rest of the configuration is added as without a test
	e.tested = append(e.tested, t.report)
	e.before = e.before.Add(die.Device.Stats())
	return die, tested, nil
}

// open makes the die with all that the driver does not refuse, and returns what it refuses.
func (t *selfTester) open(p vk.Profile) (vk.Features, error) {
	dev, without, err := t.in.NewDeviceWithout(t.info, p)
	if err != nil {
		return without, err
	}
	t.die = scheduler.NewDie(dev)
	t.die.Fault = t.fault
	t.report.Rejected = without.Names()
	return without, nil
}

// selfTest compares the kernels of a profile with their twins, as far as they are not known, and makes the configuration one
// that does without those that are wrong.
func (e *Engine) selfTest(t *selfTester, p vk.Profile) error {
	info := t.info
	if t.fault == scheduler.NoFault && e.cfg.SelfTest == SelfTestAuto {
		t.known = selftest.Recall(e.cfg.SelfTestDir, selftest.For(info, p))
	}
	if err := t.run(context.Background(), p); err != nil {
		return err
	}
	if err := t.keep(e.cfg.SelfTestDir); err != nil {
		e.warn(fmt.Errorf("the self-test of %s is not kept: %w", info.Name, err))
	}
	r := &t.report
	if r.Rungs == 0 {
		return nil
	}
	e.cfg.restrict(r.Rungs)
	why := "kernels that differ from their twins, as an earlier self-test found"
	if bad := r.Failed(); len(bad) > 0 {
		why = fmt.Sprintf("kernel %s %s", bad[0].Variant, bad[0].wrong())
		if n := len(bad) - 1; n > 0 {
			why += fmt.Sprintf(", and %d others", n)
		}
	}
	e.warn(fmt.Errorf("%s computes wrongly with its driver: %s; running %s; caldera selftest shows more, another version of the driver may help",
		info, why, r.Without))
	return nil
}

// wrong says in which way a variant is.
func (c *SelfTestCheck) wrong() string {
	if c.Err != "" {
		return "is refused: " + c.Err
	}
	return fmt.Sprintf("differs from its twin by %.3g of its largest value in %s, more than %.3g", c.Rel, c.Op, c.Tol)
}

// restrict leaves out of a configuration what the first n rungs of the ladder do, which would else be refused.
func (c *Config) restrict(n int) {
	c.untuned = c.untuned || n > 0 && !selftest.Tuned(n)
	p := selftest.Restrict(vk.Profile{Features: vk.Features{CooperativeMatrix: true}}, n)
	if !p.Features.CooperativeMatrix {
		c.Matrices = false
	}
	if p.NoPacked && c.Activations == ActivationsInt8 {
		c.Activations = ActivationsAuto
	}
}

// SelfTested is what comparing kernels at open has found, by device. There are no checks where all kernels were known.
func (e *Engine) SelfTested() []SelfTestReport { return e.tested }
