//go:build unix && cgo

#define _GNU_SOURCE
#include "guard.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#endif

#ifndef MAP_ANONYMOUS
#define MAP_ANONYMOUS MAP_ANON
#endif
#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

enum { RANGES = 1024 };

static guard_range ranges[RANGES];
static uint32_t used; // ranges that were ever taken: the handler looks no further
static uintptr_t page;
static struct sigaction before;
static int installed;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // for guard_add and guard_drop; the handler takes none

// fill puts zeros where addr lies, if that is in a watched range, and returns whether it did. It begins at the lost
// page and goes to the end of the range: what follows a lost page is lost as well when a file was truncated, and
// one hole takes one signal and one map entry where thousands of single pages could use up the system's number
// of entries. What of it was still sound is of no use to anybody, for the range counts as damaged.
static int fill(uintptr_t addr) {
	uint32_t n = __atomic_load_n(&used, __ATOMIC_ACQUIRE);
	for (uint32_t i = 0; i < n; i++) {
		guard_range *r = &ranges[i];
		uint32_t turn = __atomic_load_n(&r->turn, __ATOMIC_ACQUIRE);
		uintptr_t start = __atomic_load_n(&r->start, __ATOMIC_RELAXED);
		uintptr_t end = __atomic_load_n(&r->end, __ATOMIC_RELAXED);
		__atomic_thread_fence(__ATOMIC_ACQUIRE);
		if ((turn & 1) || turn != __atomic_load_n(&r->turn, __ATOMIC_RELAXED) || addr < start || addr >= end) {
			continue;
		}
		// Before the zeros can be seen, so that whoever has read them finds the mark.
		__atomic_store_n(&r->damaged, 1, __ATOMIC_SEQ_CST);
		uintptr_t from = addr & ~(page - 1);
		void *p = mmap((void *)from, end - from, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
		return p != MAP_FAILED;
	}
	return 0;
}

// pass gives a signal to the handler that was there before.
static void pass(const struct sigaction *before, int sig, siginfo_t *info, void *context) {
	if (before->sa_flags & SA_SIGINFO) {
		before->sa_sigaction(sig, info, context);
	} else if (before->sa_handler != SIG_DFL && before->sa_handler != SIG_IGN) {
		before->sa_handler(sig);
	} else {
		// What caused it happens again, and then does what it would have done without this handler.
		sigaction(sig, before, NULL);
		if (info->si_code <= 0) {
			raise(sig);
		}
	}
}

static void on_bus_error(int sig, siginfo_t *info, void *context) {
	// A code above 0 says that the kernel sent the signal, for an access to si_addr, and not another process.
	if (info->si_code > 0) {
		int e = errno;
		int filled = fill((uintptr_t)info->si_addr);
		errno = e;
		if (filled) {
			return; // the access is made again, and finds zeros
		}
	}
	pass(&before, sig, info, context);
}

// install puts the handler before the one that is there. Go asks for SA_ONSTACK, because its threads have small
// stacks, and blocks every signal in its own handlers.
static int install(void) {
	if (installed) {
		return 1;
	}
	page = (uintptr_t)sysconf(_SC_PAGESIZE);
	if (sigaction(SIGBUS, NULL, &before) != 0) {
		return 0;
	}
	struct sigaction a;
	memset(&a, 0, sizeof a);
	a.sa_sigaction = on_bus_error;
	a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
	sigfillset(&a.sa_mask);
	installed = sigaction(SIGBUS, &a, NULL) == 0;
	return installed;
}

// set changes a range as a whole, as the handler sees it.
static void set(guard_range *r, uintptr_t start, uintptr_t end) {
	__atomic_fetch_add(&r->turn, 1, __ATOMIC_ACQ_REL);
	__atomic_store_n(&r->start, start, __ATOMIC_RELEASE);
	__atomic_store_n(&r->end, end, __ATOMIC_RELEASE);
	__atomic_fetch_add(&r->turn, 1, __ATOMIC_RELEASE);
}

int guard_add(void *start, size_t size, guard_range **slot) {
	int result = GUARD_NO_HANDLER;
	pthread_mutex_lock(&lock);
	if (install()) {
		result = GUARD_FULL;
		for (uint32_t i = 0; i < RANGES; i++) {
			guard_range *r = &ranges[i];
			if (r->end != 0) {
				continue;
			}
			__atomic_store_n(&r->damaged, 0, __ATOMIC_SEQ_CST);
			uintptr_t from = (uintptr_t)start;
			set(r, from, from + ((size + page - 1) & ~(page - 1)));
			if (i >= used) {
				__atomic_store_n(&used, i + 1, __ATOMIC_RELEASE);
			}
			*slot = r;
			result = GUARD_OK;
			break;
		}
	}
	pthread_mutex_unlock(&lock);
	return result;
}

void guard_drop(guard_range *slot) {
	pthread_mutex_lock(&lock);
	set(slot, 0, 0);
	pthread_mutex_unlock(&lock);
}

#ifdef __linux__

static struct sigaction before_call;
static int call_installed;
static int answered;

// on_call runs on a thread that guard_reach has called, and lets SIGBUS through to it from now on.
static void on_call(int sig, siginfo_t *info, void *context) {
	if (info->si_code == SI_TKILL && info->si_pid == getpid()) {
		sigdelset(&((ucontext_t *)context)->uc_sigmask, SIGBUS);
		__atomic_fetch_add(&answered, 1, __ATOMIC_RELEASE);
		return;
	}
	pass(&before_call, sig, info, context);
}

int guard_reach(const int *threads, int n) {
	pthread_mutex_lock(&lock);
	if (!call_installed && installed && sigaction(SIGSYS, NULL, &before_call) == 0) {
		struct sigaction a;
		memset(&a, 0, sizeof a);
		a.sa_sigaction = on_call;
		a.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
		sigfillset(&a.sa_mask);
		call_installed = sigaction(SIGSYS, &a, NULL) == 0;
	}
	int called = 0;
	__atomic_store_n(&answered, 0, __ATOMIC_RELEASE);
	for (int i = 0; call_installed && i < n; i++) {
		called += syscall(SYS_tgkill, getpid(), threads[i], SIGSYS) == 0;
	}
	// A tenth of a second at most; threads answer as soon as they are scheduled.
	for (int i = 0; i < 1000 && __atomic_load_n(&answered, __ATOMIC_ACQUIRE) < called; i++) {
		struct timespec wait = {0, 100 * 1000};
		nanosleep(&wait, NULL);
	}
	int got = __atomic_load_n(&answered, __ATOMIC_ACQUIRE);
	pthread_mutex_unlock(&lock);
	return got;
}

#endif
