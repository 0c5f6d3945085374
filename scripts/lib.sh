# Shared by the scripts next to it; source it, do not run it.
#
# POSIX sh. Every function either does its work silently when there is nothing to do,
# or says what it does before it does it.

# The repository root, wherever the script was called from.
ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)

# Everything fetched or cached lives here; git ignores it and `make clean-rig` removes it.
RIG=$ROOT/.rig

say() { printf '%s\n' "caldera: $*" >&2; }

die() {
	say "$*"
	exit 1
}

have() { command -v "$1" >/dev/null 2>&1; }

# is_root succeeds for the superuser.
is_root() { [ "$(id -u)" = 0 ]; }

# can_root succeeds when a command can be run as root: as root itself, or through sudo when sudo
# needs no password or there is a terminal to ask for one.
can_root() {
	is_root && return 0
	have sudo || return 1
	sudo -n true 2>/dev/null || [ -t 0 ]
}

# as_root runs a command as root.
as_root() {
	if is_root; then "$@"; else sudo "$@"; fi
}

# apt_refresh reads the package lists anew. One broken third-party source must not stop us when the
# packages we want come from another one, so a failure here is only reported.
apt_refresh() {
	as_root apt-get -q update >&2 || say "apt-get update reported a problem; going on with the lists there are"
}

# apt_install PACKAGE... installs packages, or prints the line to run and stops when it may not.
apt_install() {
	if ! have apt-get; then
		say "this machine has no apt-get; install the equivalents of these Debian packages and run this again:"
		die "    $*"
	fi
	if ! can_root; then
		say "packages are missing and this user cannot become root; run this and try again:"
		die "    apt-get update && apt-get install -y --no-install-recommends $*"
	fi
	say "installing: $*"
	apt_refresh
	# Recommended packages are left out on purpose: they pull in drivers and desktops.
	as_root env DEBIAN_FRONTEND=noninteractive \
		apt-get -q install -y --no-install-recommends "$@" >&2 ||
		die "apt-get could not install: $*"
}

# multiarch prints the directory name that Debian uses for this machine's libraries.
multiarch() {
	case $(uname -m) in
	x86_64) echo x86_64-linux-gnu ;;
	aarch64) echo aarch64-linux-gnu ;;
	*) echo "$(uname -m)-linux-gnu" ;;
	esac
}

# abspath PATH prints PATH as an absolute path; its folder must exist.
abspath() (
	CDPATH='' cd -- "$(dirname -- "$1")" && printf '%s/%s\n' "$(pwd)" "$(basename -- "$1")"
)

# find_lavapipe prints the path of the system's lavapipe driver file, or nothing.
find_lavapipe() {
	for f in /usr/share/vulkan/icd.d/lvp_icd*.json /usr/local/share/vulkan/icd.d/lvp_icd*.json \
		/etc/vulkan/icd.d/lvp_icd*.json; do
		if [ -f "$f" ]; then
			echo "$f"
			return
		fi
	done
}

# have_layer succeeds when the Khronos validation layer can be found by the loader.
have_layer() {
	for f in /usr/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json \
		/usr/local/share/vulkan/explicit_layer.d/VkLayer_khronos_validation.json \
		/etc/vulkan/explicit_layer.d/VkLayer_khronos_validation.json \
		"${VK_LAYER_PATH:-/nonexistent}/VkLayer_khronos_validation.json"; do
		[ -f "$f" ] && return 0
	done
	return 1
}

# use_go puts a Go that is recent enough on PATH, or stops with the reason. A Go from 1.21 on fetches
# the version named in go.mod by itself, so the version is asked for inside the module.
use_go() {
	if ! have go && [ -x /usr/local/go/bin/go ]; then
		PATH=/usr/local/go/bin:$PATH
		export PATH
	fi
	have go || die "Go 1.26 or newer is needed and no go command was found: see https://go.dev/doc/install"
	v=$(cd "$ROOT" && go env GOVERSION 2>/dev/null) || v=
	if [ -z "$v" ]; then
		die "Go 1.26 or newer is needed; this one cannot read go.mod: $(go version 2>&1): see https://go.dev/doc/install"
	fi
	minor=${v#go1.}
	minor=${minor%%[!0-9]*}
	case $v in
	go1.*) [ "${minor:-0}" -ge 26 ] || die "Go 1.26 or newer is needed, this is $v: see https://go.dev/doc/install" ;;
	esac
}
