# Epilog: GNU make and a C17 compiler are all it takes.
#
#   make               the library and the command, in build/
#   make run           the ten kernels on this machine
#   make check         two minutes, on two cores, from a built library: cheap tests whole, of the others a fresh draw of their cases
#   make test          five minutes, before a push, and what CI runs: larger draws, and AddressSanitizer and UndefinedBehaviorSanitizer
#   make test-full     hours, before a release: every case of every test, in all builds
#                      Of each: SEED=7 repeats a draw, ONLY='cases laws' takes these jobs, CASE='matmul*' these cases, AGAIN=1 what failed,
#                      LIST=1 names the jobs, TAP=1 prints the Test Anything Protocol, JOBS=1 runs one at a time; tests/jobs.txt has the jobs
#   make test-pairs    every operation's result in every operand of every other, beside NumPy: results in f32 and bf16, gradients (5 minutes
#                      of a core); test-pairs-gpu and test-pairs-emulate: on a GPU, on the emulator
#   make sanitize      all of full's jobs under AddressSanitizer and UndefinedBehaviorSanitizer (15 minutes of a core)
#   make threads       what runs in threads, under ThreadSanitizer
#   make fuzz          the readers of texts and files, with libFuzzer too where clang has it; FUZZ_SECONDS=15 each
#   make update-plans  writes tests/plans.txt anew, which has what plans come to: read its diff
#   make test-memory   bytes that are read before they are written, by clang's MemorySanitizer (5 minutes of a core)
#   make mutate        faults put into the sources, MUTANTS=50 of them drawn by SEED=1: how many does TIER=test find? (90 minutes)
#   make test-cross    the suite for the other architecture, with a cross compiler and qemu
#   make test-gpu      on a GPU: a sample of the cases (3 minutes), then compute-sanitizer where it is installed
#   make test-gpu-full on a GPU: every case in every type, path, contract and configuration
#   make test-python   the PyTorch package, in an environment with CPU torch and transformers that it makes in build/venv
#   make test-python-some of that the operations alone, without transformers: what CI runs
#   make test-opinfo   PyTorch's own samples of all operations that the backend takes in, in every way (30 minutes of a core); OPINFO='add
#                      --ways 1' for some
#   make wheel         the PyTorch package as a wheel for this architecture, in build/wheel; test-wheel: that in a clean environment (build/venv)
#   make bench         the result files of this machine; bench-gpu: of a GPU, beside PyTorch
#   make readme        the tables and the plots of the documents from the result files
#   make site          the documentation as a site, in build/site; MkDocs comes from PyPI into build/site-venv. SITE_REPO_URL=https://… is
#                      where links to files lead. make test-site opens every page in a headless Chromium and follows every link
#   make build/ab      a program that times two builds of the library against each other
#   make install       PREFIX=/usr/local, LIBDIR=PREFIX/lib by default; make uninstall takes the same away
#   make clean         removes build/
#   make help          this list
#
# V=1 shows the commands as they run; BUILD=, CC=, OPT= and CFLAGS= are as usual.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

VERSION := $(shell awk '/define EPI_VERSION_/ { printf "%s%s", dot, $$3; dot = "." }' include/epilog.h)
# It rises when a program that was linked with the last one could no longer run.
SOVERSION := 0
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
BUILD ?= build

CC ?= cc
OPT ?= -O2 -g1 # lines and functions, for backtraces and profiles; OPT='-O0 -g' for a debugger, at six times the size
WARN := -Wall -Wextra -Wconversion
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
# What every compilation gets; SAN adds a sanitizer to all of it, and lets the tests share one library, whose names they all see.
BASE := -std=c17 $(OPT) $(WARN) -Iinclude -Isrc -fPIC $(if $(SAN),$(SAN) -DEPI_VERIFY=1,-fvisibility=hidden)
CFLAGS_ALL = $(BASE) $(CFLAGS)
LIBS := -lm -lpthread -ldl

ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)

# What is made is named; V=1 shows the whole command instead, and a silent make (-s) nothing.
ifeq ($(V),)
Q := @
say = $(if $(findstring s,$(firstword -$(MAKEFLAGS))),,@printf '  %-5s %s\n' $(1) $@)
endif

# ---- sources ----

LIB_SRC := $(filter-out src/cpu/rows/strips.c,$(wildcard src/*/*.c src/*/*/*.c)) # strips.c is built once per instruction set
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
CLI_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cli/*.c))

# Files of one instruction set get its flags; on other machines they compile to nothing. A micro-kernel starts on a line of the
# instruction cache: its time must not depend on what is linked before it (7 % on a Neoverse V1).
$(BUILD)/obj/src/cpu/micro/micro_%.o: ALIGN := -falign-functions=64
# Sanitizers make the strips long to compile: there they are optimized less, and for the baseline alone unless ALL_STRIPS says
# otherwise: they do not follow into what is written by hand for longer vectors.
FEW_STRIPS := $(if $(SAN),$(if $(ALL_STRIPS),,yes))
STRIP_FLAGS := $(if $(SAN),$(if $(ALL_STRIPS),-O1,-O0 -fno-sanitize=undefined),-O3) -fno-math-errno -fno-trapping-math -ffp-contract=off
DEAR := $(if $(SAN),$(if $(ALL_STRIPS),,-O0)) # what GCC takes half as long for, without unrolling
ifeq ($(ARCH),x86_64)
$(BUILD)/obj/src/cpu/micro/micro_avx2.o: ISA := -mavx2 -mfma -mf16c -mprfchw $(DEAR)
$(BUILD)/obj/src/cpu/micro/micro_avx512.o: ISA := -mavx512f -mfma -mprfchw $(DEAR)
$(BUILD)/obj/src/cpu/micro/micro_avx512vnni.o: ISA := -mavx512f -mavx512vnni -mfma -mprfchw $(DEAR)
$(BUILD)/obj/src/cpu/micro/micro_avx512bf16.o: ISA := -mavx512f -mavx512bf16 -mprfchw
$(BUILD)/obj/src/cpu/micro/micro_amx.o: ISA := -mamx-tile -mamx-bf16 -mprfchw
$(BUILD)/obj/src/cpu/product/pack_f16c.o: ISA := -mavx2 -mf16c
STRIP_TABLES := baseline $(if $(FEW_STRIPS),,avx2 avx512)
else
STRIP_TABLES := baseline
endif
ifeq ($(ARCH),aarch64)
$(BUILD)/obj/src/cpu/micro/micro_bf16mm.o: ISA := -march=armv8.2-a+bf16
endif
$(BUILD)/obj/src/cpu/reference.o $(BUILD)/obj/src/cpu/pass/passes.o: ISA := -O3
STRIP_OBJ := $(STRIP_TABLES:%=$(BUILD)/obj/src/cpu/rows/strips_%.o)
$(BUILD)/obj/src/cpu/rows/strips_avx2.o: ISA := -mavx2 -mfma -mf16c
$(BUILD)/obj/src/cpu/rows/strips_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512

OBJ := $(STRIP_OBJ) $(LIB_OBJ) # what takes longest first

# ---- building ----

.PHONY: all help run bench bench-gpu readme test install uninstall clean
all: $(BUILD)/epilog $(BUILD)/libepilog.so $(BUILD)/libepilog.a $(BUILD)/libepilog_torch.so

help:
	@sed -n 's/^#   make/make/p' Makefile

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) $(ALIGN) $(ISA) -MMD -MP -c $< -o $@

# the device texts and the programs are part of the library
$(BUILD)/obj/src/cuda/embed.o: $(wildcard src/cuda/device/*.cuh)
$(BUILD)/obj/src/lang/bundled.o: $(wildcard programs/*.epi)

# the commit goes into result files and `epilog --version`, so these files follow it
$(BUILD)/obj/cli/bench.o $(BUILD)/obj/cli/version.o: $(BUILD)/commit-$(COMMIT)
$(BUILD)/commit-$(COMMIT):
	@mkdir -p $(@D); rm -f $(BUILD)/commit-*; touch $@

$(BUILD)/obj/cli/%.o: cli/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -Icli -DEPI_COMMIT='"$(COMMIT)"' -MMD -MP -c $< -o $@

$(BUILD)/obj/src/cpu/rows/strips_%.o: src/cpu/rows/strips.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) $(STRIP_FLAGS) $(ISA) -DEPI_STRIPS_ISA=$* -MMD -MP -c $< -o $@

$(BUILD)/obj/src/cpu/rows/strips_choose.o: src/cpu/rows/strips_choose.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) $(if $(FEW_STRIPS),-DEPI_STRIPS_BASELINE=1) -MMD -MP -c $< -o $@

$(BUILD)/libepilog.a: $(OBJ)
	@rm -f $@
	$(call say,AR)
	$(Q)$(AR) rcs $@ $^

$(BUILD)/libepilog.so: $(OBJ)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,libepilog.so.$(SOVERSION) -o $@.$(VERSION) $^ $(LIBS)
	$(Q)ln -sf libepilog.so.$(VERSION) $@.$(SOVERSION)
	$(Q)ln -sf libepilog.so.$(SOVERSION) $@

# The operations of the PyTorch package, in C; see python/dispatch.c.
$(BUILD)/libepilog_torch.so: $(BUILD)/obj/python/dispatch.o
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -shared -o $@ $^ -lpthread -ldl

# The libraries as a wheel has them: the same objects, without debug information, for every glibc from 2.28 on (python/glibc.c).
# Another library of that name in the process does not take the place of functions of this one (-Bsymbolic).
WHEEL := $(BUILD)/wheel
IN_WHEEL := $(WHEEL)/libepilog.so $(WHEEL)/libepilog_torch.so
# The command is a function in it (python/command.c).
FOR_WHEEL = -shared -Wl,-S,-Bsymbolic,--gc-sections,--no-as-needed -o $@ $^ -l:libpthread.so.0 -l:libdl.so.2 -Wl,--as-needed -lm
$(BUILD)/obj/python/glibc.o: ISA := -ffunction-sections
$(WHEEL)/libepilog.so: $(OBJ) $(CLI_OBJ) $(BUILD)/obj/python/command.o $(BUILD)/obj/python/glibc.o
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -Wl,-soname,libepilog.so $(FOR_WHEEL)
$(WHEEL)/libepilog_torch.so: $(BUILD)/obj/python/dispatch.o $(BUILD)/obj/python/glibc.o
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) $(FOR_WHEEL)

$(BUILD)/epilog: $(CLI_OBJ) $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)

# The manual page, written by the command from its own tables.
$(BUILD)/epilog.1: $(BUILD)/epilog
	$(call say,MAN)
	$(Q)$(BUILD)/epilog man >$@

# ---- running ----

run: $(BUILD)/epilog
	$(BUILD)/epilog bench

# The result files that docs/results.md and bench/notes have tables of; MACHINE names them.
MACHINE ?= $(shell uname -m)
bench: $(BUILD)/epilog
	$(BUILD)/epilog bench --size 1024,2048 --threads 2 --out bench/results/$(MACHINE)-f32.json
	$(BUILD)/epilog bench --size 1024,2048 --threads 2 --type bf16 --out bench/results/$(MACHINE)-bf16.json
	$(BUILD)/epilog bench rmsnorm softmax swiglu_gate --dims T=16384,D=4096,F=4096 --threads 2 --out bench/results/$(MACHINE)-rows-f32.json

# The same on a GPU, beside cuBLAS and PyTorch: needs python3 with torch. GPU names the result file.
GPU ?= gpu
bench-gpu: $(BUILD)/libepilog.so
	python3 bench/vs_torch.py --product --kernels 4096,8192 --rounding packed,exact --ragged --chain --launch --compile \
	    --lib $(BUILD)/libepilog.so --commit $(COMMIT) --out bench/results/$(GPU).json
	python3 bench/rows_torch.py --lib $(BUILD)/libepilog.so --commit $(COMMIT) --out bench/results/$(GPU)-rows.json
	@echo 'bench/results/$(GPU).json and $(GPU)-rows.json are written; make readme puts them into the tables that name them'

# The tables of the README, the results and the notes from the result files that they name, and the plots: of which kind, from what, of
# which size, and where.
TABLED := README.md docs/results.md $(wildcard bench/notes/*.md)
PLOTS := kernels,h200-torch.json,4096,bench/notes/kernels.svg rows,h200-rows.json,8192,bench/notes/rows.svg \
    blocks,h200-blocks.json,8192,bench/notes/blocks.svg attention,h200-attention.json,128,docs/attention.svg \
    cpu,xeon-emr-2of16-f32.json,2048,bench/notes/cpu.svg training,h200-llama.json,4096,docs/llama.svg
comma := ,
plotted = $(word 1,$(subst $(comma), ,$(1))) bench/results/$(word 2,$(subst $(comma), ,$(1))) $(word 3,$(subst $(comma), ,$(1))) $(word 4,$(subst $(comma), ,$(1)))
readme: $(BUILD)/table $(BUILD)/plot
	@set -e; for f in $(TABLED); do echo $$f; $(BUILD)/table $$f; done
	@set -e; $(foreach p,$(PLOTS),echo $(lastword $(call plotted,$p)); $(BUILD)/plot $(call plotted,$p);)

$(BUILD)/table: $(wildcard bench/table*.c)
$(BUILD)/plot: bench/plot.c cli/chart.c
$(BUILD)/table $(BUILD)/plot: bench/record.c bench/record.h $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -o $@ $(filter %.c,$^) $(BUILD)/libepilog.a $(LIBS)

# Two builds of the library timed against each other: build/ab OLD.so NEW.so; bench/ab.c tells its options.
$(BUILD)/ab: bench/ab.c include/epilog.h
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -o $@ $< -lm -ldl

# Products of few rows on this CPU beside a loop that reads their weights: build/few_rows; bench/few_rows.c tells its options.
$(BUILD)/few_rows: bench/few_rows.c $(BUILD)/libepilog.a $(BUILD)/commit-$(COMMIT)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -DEPI_COMMIT='"$(COMMIT)"' -o $@ $(filter-out %-$(COMMIT),$^) $(LIBS)

# ---- tests ----

# The programs of the suite that tests/jobs.txt has a share for in this column: 1 for all, 5 and 6 for the sanitizers' of `make test` and of
# `make test-full`.
programs_in = $(sort $(shell awk '!/^(\#|leaks|$$)/ && $$$(1) != "-" && match($$0, /[$$]B\/test\/[a-z_0-9]+/) { print substr($$0, RSTART + 8, RLENGTH - 8) }' tests/jobs.txt))
TESTS := $(filter-out pairs_%,$(call programs_in,1))
RUN_TESTS ?= $(TESTS)
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/example/%,$(wildcard examples/*.c))

# They are optimized less than the library, and under the sanitizers as it is: most of their time is that of compiling them.
TEST_OPT := $(if $(SAN),,-O1)
$(BUILD)/obj/tests/%.o: tests/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) $(TEST_OPT) -D_GNU_SOURCE -Itests -MMD -MP -c $< -o $@

# In tests graphs are verified after each pass: this object has all that the library's has, so that is not linked.
$(BUILD)/obj/tests/compile.o: src/pass/compile.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) -DEPI_VERIFY=1 -MMD -MP -c $< -o $@

# With a sanitizer a copy of the library is 35 MB: there programs share one, but tests that put functions of their own in the place of
# the C library's, or that load the library once more.
link = $(CC) $(CFLAGS_ALL) -o $@ $^ $(if $(SAN),-Wl$(comma)-rpath$(comma)'$(abspath $(BUILD))') $(LIBS)
SHARED := $(if $(SAN),$(BUILD)/libepilog.so,$(BUILD)/libepilog.a)
$(BUILD)/test/%: $(BUILD)/obj/tests/test_%.o $(if $(SAN),,$(BUILD)/obj/tests/compile.o) $(SHARED)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(link)
WITH_COPY := agree alloc ahead counts threads
$(WITH_COPY:%=$(BUILD)/test/%): $(BUILD)/test/%: $(BUILD)/obj/tests/test_%.o $(BUILD)/obj/tests/compile.o $(BUILD)/libepilog.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(link)
.SECONDARY: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/test_*.c))

$(BUILD)/test/json: $(BUILD)/obj/cli/chart.o
$(BUILD)/test/ncu: $(BUILD)/obj/cli/ncu.o

$(BUILD)/test/alloc: LIBS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
WRAPPED := plan_make attentions_find placer_make cut_make extract_begin verdict_of
$(BUILD)/test/counts: LIBS += $(foreach f,$(WRAPPED),-Wl,--wrap=epi_$(f))
$(BUILD)/test/agree: LIBS += -Wl,--wrap=epi_cut_order
$(BUILD)/test/ahead: LIBS += -Wl,--wrap=dlopen,--wrap=dlsym,--wrap=dlclose

$(BUILD)/example/%: examples/%.c $(SHARED)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(link)

# The runner of tests/pairs, whose generator and oracle are Python and NumPy.
$(BUILD)/test/pairs_%: $(BUILD)/obj/tests/pairs/%.o $(if $(SAN),,$(BUILD)/obj/tests/compile.o) $(SHARED)
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(link)

.PHONY: tests sanitize threads
tests: all $(RUN_TESTS:%=$(BUILD)/test/%) $(EXAMPLES) $(if $(SAN),,$(IN_WHEEL) $(BUILD)/test/gpu $(BUILD)/test/gpu_batch $(BUILD)/test/pairs_run $(BUILD)/test/pairs_emulate) # what runs on a GPU is built here, too

# What is made for tests: as many compilers at once as there are processors, unless -j says otherwise.
SUB = $(MAKE) --no-print-directory -s
PARALLEL = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
# At -O1 GCC takes twice as long as at -Og for sanitized code, of some files six times; what it makes runs 8 % faster.
ASAN = BUILD=$(BUILD)/asan OPT='-Og -g1' SAN='-fsanitize=address,undefined -fno-sanitize-recover=all' RUN_TESTS='$(call programs_in,$(if $(ALL_STRIPS),6,5))'
TSAN_TESTS := properties threads
TSAN = BUILD=$(BUILD)/tsan OPT='-O1 -g1' SAN=-fsanitize=thread RUN_TESTS='$(TSAN_TESTS)'
# What computes on memory of its own: a result that is made of bytes nobody wrote ends the test where it is compared. Workspaces and
# outputs count as unwritten before a run, what steps share before each step, a thread's tiles before each tile (EPI_UNWRITTEN).
MSAN_TESTS := micro strips strips_fold tape moves rowloop rows cases attention grad
MSAN = BUILD=$(BUILD)/msan CC=clang OPT='-O1 -g1' SAN=-fsanitize=memory RUN_TESTS='$(MSAN_TESTS)'
FUZZED := lang safetensors

# What plans come to, as they are now: the diff of that file is what is to be judged.
.PHONY: update-plans
update-plans: $(BUILD)/test/plans
	$(BUILD)/test/plans tests/plans.txt --update

# What the library makes of every program, as hashes: build/fingerprint programs tests.
$(BUILD)/fingerprint: $(BUILD)/obj/tests/fingerprint.o $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)

# Faults put into the sources, one at a time, and how many of them a tier finds; AGAIN=FILE takes recorded ones. tests/mutate.sh tells how.
MUTANTS ?= 50
TIER ?= test
mutate: SEED ?= 1
.PHONY: mutate
mutate:
	@TIER='$(TIER)' AGAIN='$(AGAIN)' bash tests/mutate.sh $(BUILD)/mutate $(MUTANTS) $(SEED)

# The same table of cases, timed; and what each case compiles to.
.PHONY: perf support
perf support: $(BUILD)/test/cases
	$(BUILD)/test/cases programs $@

# The tiers. What SEED does not say, a check draws anew, and `make test` draws by the number of commits: so each commit tries other cases, and one
# commit always the same. ALL_STRIPS needs a build of its own.
.PHONY: check test test-full tier-full build-tests build-all build-full
run_tier = PYTHON='$(if $(wildcard $(BUILD)/venv/torch),$(BUILD)/venv/bin/python,$(PYTHON))' $(BUILD)/run $(1) --build $(BUILD) --seed $(or $(SEED),$(2)) \
    $(if $(JOBS),--jobs $(JOBS)) $(if $(CASE),--case '$(CASE)') $(if $(AGAIN),--again) $(if $(LIST),--list) $(if $(TAP),--tap) $(ONLY)
build-tests:
	+@$(SUB) $(PARALLEL) tests $(BUILD)/table $(BUILD)/plot $(BUILD)/run
build-all: build-tests
	+@$(SUB) $(PARALLEL) $(ASAN) tests fuzzers
check: build-tests
	@$(call run_tier,check,$(shell date +%s))
test: build-all
	@$(call run_tier,test,$(shell git rev-list --count HEAD 2>/dev/null || date +%j))
test-full: build-full
	+@$(SUB) tier-full BUILD=$(BUILD)/full
sanitize: build-full
	+@$(SUB) tier-full BUILD=$(BUILD)/full ONLY=asan/
build-full:
	+@$(SUB) build-all BUILD=$(BUILD)/full ALL_STRIPS=1
tier-full:
	@$(call run_tier,full,$(shell date +%s))

$(BUILD)/run: tests/run.c
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) -std=c17 -O1 -g $(WARN) -D_GNU_SOURCE -o $@ $<

threads: $(BUILD)/run
	+@$(SUB) $(PARALLEL) $(TSAN) $(TSAN_TESTS:%=$(BUILD)/tsan/test/%)
	@$(BUILD)/run full --build $(BUILD)/tsan $(TSAN_TESTS)

# The tables and the plots of the documents say what the result files say.
.PHONY: hold-tables
hold-tables: $(BUILD)/table $(BUILD)/plot
	@set -e; for f in $(TABLED); do $(BUILD)/table --check $$f; done
	@set -e; $(foreach p,$(PLOTS),$(BUILD)/plot --check $(call plotted,$p);)

.PHONY: test-memory
test-memory: $(BUILD)/run
	+@$(SUB) $(PARALLEL) $(MSAN) $(MSAN_TESTS:%=$(BUILD)/msan/test/%)
	@$(BUILD)/run full --build $(BUILD)/msan --share 1/20 $(MSAN_TESTS)

# Pairs, whole. What these say before the last line tells what was left out and why.
.PHONY: test-pairs test-pairs-gpu test-pairs-emulate
PAIRS = $(PYTHON) tests/pairs/pairs.py --runner $(BUILD)/test/pairs_run --seed $(or $(SEED),1)
test-pairs: $(BUILD)/test/pairs_run
	$(PAIRS) --types f32,bf16 --reference
	$(PAIRS) --types f32 --grad
test-pairs-gpu: $(BUILD)/test/pairs_run
	EPILOG_CACHE=$(BUILD)/cache $(PAIRS) --device gpu --jobs $(shell nproc)
test-pairs-emulate: $(BUILD)/test/pairs_emulate
	@mkdir -p $(BUILD)/emulate
	$(PAIRS) --runner $(BUILD)/test/pairs_emulate --types bf16 --together 600

# What needs a GPU: a sample of the table of cases, or all of it; the bits of rows in batches of 1 to 8192; then tiny cases
# under compute-sanitizer where it is
# installed; of the kernels left out of racecheck bench/notes/rows.md tells.
.PHONY: test-gpu test-gpu-full
test-gpu: GPU_MODE := sample
test-gpu-full: GPU_MODE := full
test-gpu test-gpu-full: $(BUILD)/test/gpu $(BUILD)/test/gpu_batch
	EPILOG_CACHE=$(BUILD)/cache EPILOG_NEED_GPU=1 $(BUILD)/test/gpu programs $(GPU_MODE)
	EPILOG_CACHE=$(BUILD)/cache EPILOG_NEED_GPU=1 $(BUILD)/test/gpu_batch programs
	@if command -v compute-sanitizer >/dev/null; then for tool in memcheck 'racecheck --kernel-name-exclude kns=row_'; do \
	    printf '%-12s ' "$${tool%% *}"; EPILOG_CACHE=$(BUILD)/cache EPILOG_NEED_GPU=1 \
	        compute-sanitizer --tool $$tool --error-exitcode 1 $(BUILD)/test/gpu programs sanitize || exit 1; done; \
	else echo 'compute-sanitizer is not on the path: memcheck and racecheck are left out'; fi

# The PyTorch package as its wheel installs it. Not part of `make test`: PyTorch is 150 MB to fetch, and takes two minutes here.
# PyPI's torch is for CUDA from 2.11 on, with gigabytes of libraries; its own index has it for the CPU alone.
PYTHON ?= python3
TORCH ?= torch==2.10.*
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
.PHONY: test-python test-python-some test-python-drawn test-opinfo
test-opinfo: $(BUILD)/venv/torch $(BUILD)/libepilog.so $(BUILD)/libepilog_torch.so
	PYTHONPATH=python $(BUILD)/venv/bin/python python/tests/opinfo.py $(OPINFO)
test-python: PYTESTS :=
test-python: $(BUILD)/venv/ready
test-python-some: PYTESTS := test_op.py test_schema.py test_backend.py test_operations.py test_differences.py test_opinfo.py
test-python-some: $(BUILD)/venv/torch
test-python test-python-some: $(BUILD)/libepilog.so $(BUILD)/libepilog_torch.so
	cd $(BUILD) && venv/bin/pip uninstall -qqy epilog # its name until 0.1
	cd $(BUILD) && EPILOG_BUILD='$(abspath $(BUILD))' venv/bin/pip install -q --no-deps --no-build-isolation --force-reinstall '$(CURDIR)/python'
	cd python/tests && '$(abspath $(BUILD))/venv/bin/python' -m pytest -q -p no:cacheprovider -p no:logging $(PYTESTS)

# The wheel, by the build environment where it is there. setup.py names the platform by the symbols that the libraries ask for.
.PHONY: wheel test-wheel test-wheel-drawn
WITH_TORCH = $(wildcard $(BUILD)/venv/torch)
wheel: $(IN_WHEEL)
	@rm -f $(WHEEL)/*.whl
	$(Q)EPILOG_BUILD='$(abspath $(BUILD))' $(if $(WITH_TORCH),$(BUILD)/venv/bin/pip wheel --no-build-isolation,$(PYTHON) -m pip wheel) -q --no-deps -w $(WHEEL) ./python
	@ls $(WHEEL)/*.whl

# How the wheel differs from make's library: the versions of libc's functions that it calls. These programs hold that no bit changes.
$(WHEEL)/bits: $(BUILD)/obj/python/tests/bits.o $(BUILD)/obj/python/glibc.o
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)
$(WHEEL)/fingerprint: $(BUILD)/obj/tests/fingerprint.o $(BUILD)/obj/python/glibc.o $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)

test-wheel: $(BUILD)/venv/torch wheel $(BUILD)/epilog $(if $(QUICK),,$(WHEEL)/bits $(WHEEL)/fingerprint $(BUILD)/fingerprint)
	QUICK='$(QUICK)' bash python/tests/wheel.sh $(BUILD)
test-wheel-drawn:
	@if [ -e $(BUILD)/venv/torch ]; then $(SUB) test-wheel; else echo 'skipped: PyTorch is not there; make $(BUILD)/venv/torch fetches it'; fi

test-python-drawn:
	@if [ -e $(BUILD)/venv/torch ]; then $(SUB) test-python-some; else echo 'skipped: PyTorch is not there; make $(BUILD)/venv/torch fetches it'; fi

# Without that index, what torch itself needs is named, and the GPU's libraries are left out where it loads without them.
$(BUILD)/venv/torch:
	$(PYTHON) -m venv $(BUILD)/venv
	$(BUILD)/venv/bin/pip install -q --index-url $(TORCH_INDEX) '$(TORCH)' || $(BUILD)/venv/bin/pip install -q --no-deps '$(TORCH)'
	$(BUILD)/venv/bin/pip install -q filelock typing-extensions sympy networkx jinja2 fsspec numpy 'setuptools>=77' pytest expecttest
	$(BUILD)/venv/bin/python -c 'import torch' 2>/dev/null || $(BUILD)/venv/bin/pip install -q '$(TORCH)'
	touch $@
$(BUILD)/venv/ready: $(BUILD)/venv/torch
	$(BUILD)/venv/bin/pip install -q transformers psutil
	$(BUILD)/venv/bin/pip install -q --no-deps peft accelerate
	touch $@

# The site: website/mkdocs.yml says what is in it. Without a browser, or without MkDocs and the way to fetch it, its test is skipped.
.PHONY: site test-site
SITE = PYTHONDONTWRITEBYTECODE=1 NO_MKDOCS_2_WARNING=1 $(BUILD)/site-venv/bin/mkdocs build -q --strict -f website/mkdocs.yml -d '$(abspath $(BUILD))/site'
site: $(BUILD)/site-venv/ready
	$(SITE)
$(BUILD)/site-venv/ready: website/requirements.txt
	$(PYTHON) -m venv $(BUILD)/site-venv
	$(BUILD)/site-venv/bin/pip install -q -r website/requirements.txt
	touch $@
test-site:
	@if ! command -v chromium chromium-browser google-chrome google-chrome-stable chrome >/dev/null; then echo 'skipped: there is no Chromium'; \
	elif ! $(SUB) $(BUILD)/site-venv/ready >$(BUILD)/site-venv.log 2>&1; then echo 'skipped: MkDocs could not be fetched'; \
	else $(SITE) && $(PYTHON) tests/test_site.py $(BUILD)/site; fi

# libFuzzer where clang has it, beside the driver of our own; a bounded time either way.
FUZZ_SECONDS ?= 15
HAS_FUZZER = echo 'int LLVMFuzzerTestOneInput(const char *d, long n){return d && n < 0;}' | clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
LIBFUZZER = $(FUZZED:%=$(BUILD)/fuzzer/libfuzzer_%)
.PHONY: fuzz fuzzers
fuzzers: $(FUZZED:%=$(BUILD)/fuzz_%)
fuzz:
	+@$(SUB) $(PARALLEL) $(ASAN) fuzzers
	@rm -rf $(BUILD)/fuzz; mkdir -p $(FUZZED:%=$(BUILD)/fuzz/%)
	@! $(HAS_FUZZER) || $(SUB) $(PARALLEL) CC=clang BUILD=$(BUILD)/fuzzer OPT='-O1 -g' SAN='-fsanitize=fuzzer-no-link,address' $(LIBFUZZER)
	@set -e; for t in $(FUZZED); do $(BUILD)/asan/fuzz_$$t --seconds $(FUZZ_SECONDS) tests/corpus/$$t; done
	@! $(HAS_FUZZER) || for t in $(FUZZED); do $(BUILD)/fuzzer/libfuzzer_$$t -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
	    -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/$$t tests/corpus/$$t || exit 1; done

$(BUILD)/fuzz_%: tests/fuzz_%.c tests/fuzz_main.c $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -o $@ $^ $(LIBS)

$(BUILD)/libfuzzer_%: tests/fuzz_%.c $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -fsanitize=fuzzer -o $@ $^ $(LIBS)

# The suite for the other of both architectures, where a cross compiler and qemu-user are installed. What the emulator does not
# know (AVX-512), it does not test.
OTHER := $(if $(filter x86_64,$(ARCH)),aarch64,x86_64)
CROSS_TESTS := micro strips strips_fold tape sums json safetensors lang moves threads deep properties random rowloop docs cuda
.PHONY: test-cross
test-cross:
	@$(MAKE) --no-print-directory -s CC=$(OTHER)-linux-gnu-gcc AR=$(OTHER)-linux-gnu-ar BUILD=$(BUILD)/$(OTHER) $(CROSS_TESTS:%=$(BUILD)/$(OTHER)/test/%)
	@set -e; qemu=$$(command -v qemu-$(OTHER) || command -v qemu-$(OTHER)-static || echo qemu-$(OTHER)); for t in $(CROSS_TESTS); do \
	    case $$t in random) args=40;; docs) args="docs/language.md docs/speed.md tests/messages.txt";; cuda) args="programs $(BUILD)/cache texts";; *) args=;; esac; printf '%-12s ' $$t; \
	    $$qemu -cpu max -L /usr/$(OTHER)-linux-gnu $(BUILD)/$(OTHER)/test/$$t $$args >$(BUILD)/$(OTHER)/test/$$t.log; \
	    tail -n 1 $(BUILD)/$(OTHER)/test/$$t.log; done

# ---- installing ----

DEST = $(DESTDIR)$(PREFIX)
LIBDEST = $(DESTDIR)$(LIBDIR)
SHELLS := bash-completion/completions/epilog=bash zsh/site-functions/_epilog=zsh fish/vendor_completions.d/epilog.fish=fish
VIM := ftdetect ftplugin syntax
# A path that begins elsewhere than at / would be one below this folder, here and in what pkg-config says.
.PHONY: whole-paths
whole-paths:
	@case '$(PREFIX)/' in /*) ;; *) echo >&2 'PREFIX is a path from / on; got $(PREFIX)'; exit 1;; esac
	@case '$(LIBDIR)' in /*) ;; *) echo >&2 'LIBDIR is a path from / on, as in $(PREFIX)/lib64; got $(LIBDIR)'; exit 1;; esac

install: whole-paths all $(BUILD)/epilog.1
	@echo '  INST  $(DEST)'
	$(Q)mkdir -p '$(DEST)/bin' '$(DEST)/share/man/man1' '$(DEST)/include' '$(LIBDEST)/pkgconfig' '$(LIBDEST)/cmake/epilog' '$(DEST)/share/epilog/programs'
	$(Q)cp $(BUILD)/epilog '$(DEST)/bin/'
	$(Q)cp $(BUILD)/epilog.1 '$(DEST)/share/man/man1/'
	$(Q)cp include/*.h '$(DEST)/include/'
	$(Q)cp $(BUILD)/libepilog.a $(BUILD)/libepilog.so.$(VERSION) '$(LIBDEST)/'
	$(Q)ln -sf libepilog.so.$(VERSION) '$(LIBDEST)/libepilog.so.$(SOVERSION)'
	$(Q)ln -sf libepilog.so.$(SOVERSION) '$(LIBDEST)/libepilog.so'
	$(Q)cp programs/*.epi '$(DEST)/share/epilog/programs/'
	$(Q)for s in $(SHELLS); do mkdir -p "$$(dirname '$(DEST)/share/'$${s%=*})" && $(BUILD)/epilog completion $${s#*=} >'$(DEST)/share/'$${s%=*} || exit 1; done
	$(Q)for d in $(VIM); do mkdir -p '$(DEST)/share/vim/vimfiles/'$$d && cp editors/vim/$$d/epilog.vim '$(DEST)/share/vim/vimfiles/'$$d/ || exit 1; done
	$(Q)sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@LIBS@|$(LIBS)|' epilog.pc.in >'$(LIBDEST)/pkgconfig/epilog.pc'
	$(Q)include=$$(realpath -m --relative-to='$(LIBDIR)/cmake/epilog' '$(PREFIX)/include') && \
	for f in epilog-config epilog-config-version; do sed 's|@VERSION@|$(VERSION)|; s|@SOVERSION@|$(SOVERSION)|; s|@INCLUDE@|'"$$include"'|; s|@LIBS@|$(LIBS:%=%;)|; s|; *|;|g; s|;"|"|' \
	    $$f.cmake.in >'$(LIBDEST)/cmake/epilog/'$$f.cmake; done
	@if [ -z '$(DESTDIR)' ]; then ldconfig -N -v 2>/dev/null | grep -q '^$(LIBDIR):' \
	    && echo 'run ldconfig, as root, so that programs find libepilog.so' \
	    || echo 'programs find libepilog.so with LD_LIBRARY_PATH=$(LIBDIR), or where they are linked with -Wl,-rpath,$(LIBDIR)'; \
	    case '$(LIBDIR)' in '$(PREFIX)/lib') ;; *) echo 'CMake finds it with -Depilog_DIR=$(LIBDIR)/cmake/epilog';; esac; \
	    case ":$$PATH:" in *:'$(PREFIX)/bin':*) ;; *) echo 'the command is $(PREFIX)/bin/epilog; its manual is found with MANPATH=$(PREFIX)/share/man:';; esac; fi

uninstall:
	rm -f '$(DEST)/bin/epilog' '$(DEST)/share/man/man1/epilog.1' '$(DEST)/include/epilog.h' '$(DEST)/include/epilog_io.h' '$(LIBDEST)/pkgconfig/epilog.pc' '$(LIBDEST)'/libepilog.*
	for s in $(SHELLS); do rm -f '$(DEST)/share/'$${s%=*}; done
	for d in $(VIM); do rm -f '$(DEST)/share/vim/vimfiles/'$$d/epilog.vim; done
	rm -rf '$(LIBDEST)/cmake/epilog' '$(DEST)/share/epilog'

clean:
	rm -rf $(BUILD)

-include $(wildcard $(BUILD)/obj/*/*.d $(BUILD)/obj/*/*/*.d $(BUILD)/obj/*/*/*/*.d)
