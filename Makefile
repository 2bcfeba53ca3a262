# Builds, checks and installs Usher. `make` with no argument prints help.

.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

CARGO ?= cargo
# Added to every cargo command that compiles: `--offline` for a vendored tree.
CARGOFLAGS ?=
INSTALL ?= install
SHELLCHECK ?= shellcheck

# Where the release programs are. Whoever passes `--target` to cargo names it: BUILD_DIR=target/TRIPLE/release.
BUILD_DIR ?= $(or $(CARGO_TARGET_DIR),target)/release

PREFIX ?= /usr/local
DESTDIR ?=
BINDIR ?= $(PREFIX)/bin
# Empty: usherd is installed beside usher, where usher looks first. Otherwise usherd goes into this folder, whose name is
# compiled into usher: give the same value to `all` and to `install`.
LIBEXECDIR ?=
MANDIR ?= $(PREFIX)/share/man
DOCDIR ?= $(PREFIX)/share/doc/usher
LICENSEDIR ?= $(PREFIX)/share/licenses/usher

DOCS := $(wildcard README.md CHANGELOG.md docs/*.md)
LICENSES := $(wildcard LICENSE-*)
MANUALS := $(wildcard docs/man/*.[1-8])
SCRIPTS := $(wildcard .ci/run scripts/*.sh tests/*/*.sh)

# Only LIBEXECDIR decides what is compiled in.
unexport USHER_LIBEXECDIR

# The one list of what is installed: $(call installed,MACRO) calls MACRO with mode, source and target of each file.
# Documents keep their folders, so that the links between them hold.
define installed
$(call $(1),0755,$(BUILD_DIR)/usherd,$(or $(LIBEXECDIR),$(BINDIR))/usherd)
$(call $(1),0755,$(BUILD_DIR)/usher,$(BINDIR)/usher)
$(foreach file,$(MANUALS),$(call $(1),0644,$(file),$(MANDIR)/man$(subst .,,$(suffix $(file)))/$(notdir $(file))))
$(foreach file,$(DOCS),$(call $(1),0644,$(file),$(DOCDIR)/$(file)))
$(foreach file,$(LICENSES),$(call $(1),0644,$(file),$(LICENSEDIR)/$(file)))
endef

# -D makes folders that are missing and leaves mode and owner of those that are there.
define copy_file
$(INSTALL) -D -m $(1) '$(2)' '$(DESTDIR)$(3)'

endef

define remove_file
rm -f '$(DESTDIR)$(3)'

endef

.PHONY: help all check test test-upgrade soak bench demo install uninstall

help: ## print this
	@echo 'usage: make TARGET [VARIABLE=VALUE]...'
	@echo
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' Makefile | while IFS='	' read -r target text; do \
		printf '  %-13s %s\n' "$$target" "$$text"; done
	@echo
	@echo 'variables: CARGO CARGOFLAGS BUILD_DIR PREFIX DESTDIR BINDIR LIBEXECDIR MANDIR DOCDIR LICENSEDIR'

all: ## build usher and usherd for release
	$(if $(LIBEXECDIR),USHER_LIBEXECDIR='$(LIBEXECDIR)') $(CARGO) build --release --locked $(CARGOFLAGS)

check: ## look at format, lints, documentation, scripts, whitespace, dependencies and a staged install
	$(CARGO) fmt --check
	@command -v $(SHELLCHECK) >/dev/null || { echo 'check: shellcheck is not installed (Debian: apt-get install shellcheck)' >&2; exit 1; }
	$(SHELLCHECK) $(SCRIPTS)
	scripts/check-whitespace.sh
	scripts/check-install.sh
	CARGO='$(CARGO)' scripts/check-crates.sh
	$(CARGO) clippy --all-targets --locked $(CARGOFLAGS) -- -D warnings
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --no-deps --locked --document-private-items $(CARGOFLAGS)

# What was built is on the disk first: beside gigabytes on their way there, a daemon's few bytes wait for seconds.
test: ## run the whole test suite
	$(CARGO) test --locked $(CARGOFLAGS) --no-run
	sync
	$(CARGO) test --locked $(CARGOFLAGS)

bench: ## measure the way of a command and more, as ratios (BENCH_ARGS=--quick for a look)
	$(CARGO) bench --locked $(CARGOFLAGS) --bench bench -- $(BENCH_ARGS)

soak: ## run the tests that take minutes: a million commands through one daemon
	$(CARGO) test --release --locked $(CARGOFLAGS) --test main soak -- --ignored --nocapture

test-upgrade: ## let builds take each other's place in every way, 200 times under load (half an hour)
	CARGO='$(CARGO)' scripts/upgrade.sh

demo: all ## build, then show what Usher does
	scripts/demo.sh '$(BUILD_DIR)'

install: ## copy what `make all` has built under DESTDIR and PREFIX; compiles and runs nothing
	@for program in usher usherd; do \
		test -f '$(BUILD_DIR)'/$$program || { echo "install: $(BUILD_DIR)/$$program is missing: run 'make all' first" >&2; exit 1; }; \
	done
	$(call installed,copy_file)

uninstall: ## remove what `make install` has put there, given the same variables
	$(call installed,remove_file)
	@for folder in '$(DOCDIR)/docs' '$(DOCDIR)' '$(LICENSEDIR)' $(if $(LIBEXECDIR),'$(LIBEXECDIR)'); do \
		rmdir '$(DESTDIR)'"$$folder" 2>/dev/null || :; \
	done
