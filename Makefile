# Epilog: GNU make and a C17 compiler are all it takes.
#
#   make               the library and the command, in build/
#   make run           the ten kernels on this machine
#   make test          what can be checked without a GPU; 40 minutes of processor time, from a clean clone
#   make suite         of that the test programs alone, without the sanitizers' builds
#   make test-texts    all of the CUDA texts through NVRTC, not one of each form (7 minutes of a core)
#   make test-emulate  all kernels on the emulator, not one of each form (5 minutes of a core)
#   make test-hopper   all products in all of Hopper's configurations on the emulator
#   make test-pairs    every operation's result in every operand of every other, beside NumPy: results in f32 and bf16, gradients (5 minutes
#                      of a core); test-pairs-gpu and test-pairs-emulate: on a GPU, on the emulator
#   make test-rowbits  a row's bits in batches of 1 to 600 rows, of 10,000 random programs (4 minutes of a core)
#   make test-sanitize all test programs under AddressSanitizer and UndefinedBehaviorSanitizer, with more rounds (about 15 minutes of a core)
#   make fuzz          the readers of texts and files, with libFuzzer too where clang has it; FUZZ_SECONDS=15 each
#   make test-laws     10,000 random programs and all that come with Epilog against laws that every program keeps (7 minutes of a core)
#                      tests/laws.h; build/test/laws reduce SEED LAW makes a program that breaks one small
#   make update-plans  writes tests/plans.txt anew, which has what plans come to: read its diff
#   make test-memory   bytes that are read before they are written, by clang's MemorySanitizer (5 minutes of a core)
#   make test-full     all of the above
#   make mutate        faults put into the sources, MUTANTS=50 of them drawn by SEED=1: how many does the suite find? (90 minutes)
#   make test-cross    the suite for the other architecture, with a cross compiler and qemu
#   make test-gpu      on a GPU: a sample of the cases (3 minutes), then compute-sanitizer where it is installed
#   make test-gpu-full on a GPU: every case in every type, path, contract and configuration
#   make test-python   the PyTorch package, in an environment with CPU torch and transformers that it makes in build/venv
#   make test-python-some of that the operations alone, without transformers: what CI runs
#   make test-opinfo   PyTorch's own samples of all operations that the backend takes in, in every way (30 minutes of a core); OPINFO='add
#                      --ways 1' for some
#   make bench         the result files of this machine; bench-gpu: of a GPU, beside PyTorch
#   make readme        the tables and the plots of the documents from the result files
#   make build/ab      a program that times two builds of the library against each other
#   make install       PREFIX=/usr/local, LIBDIR=PREFIX/lib by default; make uninstall takes the same away
#   make clean         removes build/
#   make help          this list
#
# V=1 shows the commands as they run; BUILD=, CC=, OPT= and CFLAGS= are as usual.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

VERSION := 0.1.0
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

LIB_SRC := $(filter-out src/cpu/strips.c,$(wildcard src/*/*.c src/*/*/*.c)) # strips.c is built once per instruction set
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
CLI_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cli/*.c))

# Files of one instruction set get its flags; on other machines they compile to nothing. A micro-kernel starts on a line of the
# instruction cache: its time must not depend on what is linked before it (7 % on a Neoverse V1).
$(BUILD)/obj/src/cpu/micro_%.o: ALIGN := -falign-functions=64
# Sanitizers make the strips long to compile: there they are optimized less, and for the baseline alone unless ALL_STRIPS says
# otherwise: they do not follow into what is written by hand for longer vectors.
FEW_STRIPS := $(if $(SAN),$(if $(ALL_STRIPS),,yes))
STRIP_FLAGS := $(if $(SAN),-O1,-O3) -fno-math-errno -fno-trapping-math -ffp-contract=off
ifeq ($(ARCH),x86_64)
$(BUILD)/obj/src/cpu/micro_avx2.o: ISA := -mavx2 -mfma -mf16c -mprfchw
$(BUILD)/obj/src/cpu/micro_avx512.o: ISA := -mavx512f -mfma -mprfchw
$(BUILD)/obj/src/cpu/micro_avx512vnni.o: ISA := -mavx512f -mavx512vnni -mfma -mprfchw
$(BUILD)/obj/src/cpu/micro_avx512bf16.o: ISA := -mavx512f -mavx512bf16 -mprfchw
$(BUILD)/obj/src/cpu/micro_amx.o: ISA := -mamx-tile -mamx-bf16 -mprfchw
$(BUILD)/obj/src/cpu/pack_f16c.o: ISA := -mavx2 -mf16c
STRIP_TABLES := baseline $(if $(FEW_STRIPS),,avx2 avx512)
else
STRIP_TABLES := baseline
endif
ifeq ($(ARCH),aarch64)
$(BUILD)/obj/src/cpu/micro_bf16mm.o: ISA := -march=armv8.2-a+bf16
endif
$(BUILD)/obj/src/cpu/reference.o $(BUILD)/obj/src/cpu/passes.o: ISA := -O3
STRIP_OBJ := $(STRIP_TABLES:%=$(BUILD)/obj/src/cpu/strips_%.o)
$(BUILD)/obj/src/cpu/strips_avx2.o: ISA := -mavx2 -mfma -mf16c
$(BUILD)/obj/src/cpu/strips_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512

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

# the commit goes into result files, so this file follows it
$(BUILD)/obj/cli/bench.o: $(BUILD)/commit-$(COMMIT)
$(BUILD)/commit-$(COMMIT):
	@mkdir -p $(@D); rm -f $(BUILD)/commit-*; touch $@

$(BUILD)/obj/cli/%.o: cli/%.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -Icli -DEPI_COMMIT='"$(COMMIT)"' -MMD -MP -c $< -o $@

$(BUILD)/obj/src/cpu/strips_%.o: src/cpu/strips.c Makefile
	@mkdir -p $(@D)
	$(call say,CC)
	$(Q)$(CC) $(CFLAGS_ALL) $(STRIP_FLAGS) $(ISA) -DEPI_STRIPS_ISA=$* -MMD -MP -c $< -o $@

$(BUILD)/obj/src/cpu/strips_choose.o: src/cpu/strips_choose.c Makefile
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
$(BUILD)/libepilog_torch.so: python/dispatch.c include/epilog.h
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -pthread -shared -o $@ $< -ldl

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

# The result files behind the tables of docs/results.md; MACHINE names them.
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
TABLED := README.md docs/results.md $(wildcard docs/*-notes.md)
PLOTS := kernels,h200-torch.json,4096,kernels.svg rows,h200-rows.json,8192,rows.svg \
    blocks,h200-blocks.json,8192,blocks.svg attention,h200-attention.json,128,attention.svg cpu,xeon-emr-2of16-f32.json,2048,cpu.svg
comma := ,
plotted = $(word 1,$(subst $(comma), ,$(1))) bench/results/$(word 2,$(subst $(comma), ,$(1))) $(word 3,$(subst $(comma), ,$(1))) docs/$(word 4,$(subst $(comma), ,$(1)))
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

# What takes longest first: so no processor waits for the last one.
TESTS := emulate laws cuda attention recurrence deep layers cases algebra rowbits growth cut sums strips batch plans grad edges names open rowloop memory random groups rows micro strips_fold tape choice json safetensors arguments lang verify moves shifts integers time threads alloc properties decode same_bits slots prepare own types conversions dequant formulas indices puzzle docs jit ahead tokenizer
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
WITH_COPY := alloc ahead threads
$(WITH_COPY:%=$(BUILD)/test/%): $(BUILD)/test/%: $(BUILD)/obj/tests/test_%.o $(BUILD)/obj/tests/compile.o $(BUILD)/libepilog.a
	@mkdir -p $(@D)
	$(call say,LINK)
	$(Q)$(link)
.SECONDARY: $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tests/test_*.c))

$(BUILD)/test/json: $(BUILD)/obj/cli/chart.o

$(BUILD)/test/alloc: LIBS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc
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

.PHONY: tests list suite sanitize threads
tests: all $(RUN_TESTS:%=$(BUILD)/test/%) $(EXAMPLES) $(if $(SAN),,$(BUILD)/test/gpu $(BUILD)/test/gpu_batch $(BUILD)/test/pairs_run $(BUILD)/test/pairs_emulate) # what runs on a GPU is built here, too

# Lines for tests/run.sh, a name and a command each: the suite of one build. It is run in the plain build and again under
# the sanitizers, where RUN_TESTS, ROUNDS, CUDA_MODE and RUN differ.
ROUNDS ?= 400
CUDA_MODE ?= forms
CASES_MODE ?= test
ARGS_cases = programs $(CASES_MODE)
ARGS_cut = programs $(ROUNDS)
ARGS_grad = programs $(GRAD_ROUNDS)
GRAD_ROUNDS ?= 1000
ARGS_algebra = programs tests/models.epi $(GRAD_ROUNDS)
ARGS_rows := programs
ARGS_same_bits = $(if $(SAN),few)
ARGS_groups := tests/groups.epi
ARGS_batch := programs
ARGS_rowbits = $(ROW_ROUNDS)
ROW_ROUNDS ?= 350
ARGS_open := programs
ARGS_memory := tests/models.epi
ARGS_plans := tests/plans.txt
ARGS_slots := tests/experts.epi
ARGS_formulas := programs
ARGS_indices := programs
ARGS_edges := programs
ARGS_puzzle := programs
ARGS_attention = programs $(CASES_MODE)
ARGS_random = $(ROUNDS)
ARGS_own = $(ROUNDS)
LAW_TEXTS ?= $(wildcard programs/*.epi tests/*.epi) docs/cookbook.md tests/seams.md
LAW_ROUNDS ?= 1000
ARGS_laws = $(LAW_TEXTS) --random $(LAW_ROUNDS)
ARGS_docs := docs/language.md docs/speed.md tests/messages.txt docs/derivatives.md docs/algebra.md docs/cookbook.md docs/attention.md docs/time.md docs/integers.md docs/llms.txt tests/seams.md $(wildcard programs/*.epi) \
    editors/vim/syntax/epilog.vim editors/vscode/syntaxes/epilog.tmLanguage.json
ARGS_integers = $(INTEGERS)
ARGS_threads = $(BUILD)/libepilog.so
ARGS_cuda = programs $(BUILD)/cache $(CUDA_MODE)
ARGS_names = programs $(BUILD)/cache $(CUDA_MODE)
ARGS_emulate = programs $(BUILD)/emulate $(CUDA_MODE)
run = $(RUN)$(if $(filter $(1),$(NO_LEAKS)),:detect_leaks=0)
list:
	@echo 'command $(RUN) bash tests/test_cli.sh $(BUILD)/epilog'
	@$(foreach t,$(RUN_TESTS),echo '$t $(call run,$t) $(BUILD)/test/$t $(ARGS_$t)';)
	@$(foreach e,$(EXAMPLES),echo '$(notdir $e) $(call run,example) $e';)
	@echo 'examples $(RUN) bash tests/test_examples.sh $(BUILD)/example'

# What is made for `make test`: as many compilers at once as there are processors, unless -j says otherwise.
SUB = $(MAKE) --no-print-directory -s
PARALLEL = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))
ASAN_ROUNDS ?= 20
# At -O1 GCC takes twice as long as at -Og for sanitized code, of some files six times; what it makes runs 8 % faster.
ASAN = BUILD=$(BUILD)/asan OPT='-Og -g1' SAN='-fsanitize=address,undefined -fno-sanitize-recover=all' \
    RUN='env ASAN_OPTIONS=allocator_may_return_null=1' RUN_TESTS='$(filter-out $(NOT_ASAN),$(TESTS))' ROUNDS=$(ASAN_ROUNDS) GRAD_ROUNDS=$(ASAN_ROUNDS) LAW_ROUNDS=60 LAW_TEXTS= \
    CUDA_MODE=some CASES_MODE=some $(if $(filter aarch64,$(ARCH)),NO_LEAKS='$(filter-out $(SEARCHED),$(TESTS)) example')
# These go where others go under the sanitizers, many times over: batch, rowbits and sums where cases and rowloop do, names where cuda does,
# plans, layers and growth where algebra and cut do. `make test-sanitize` has them all.
# The emulator has fibers, which AddressSanitizer does not follow, and checks addresses itself.
NOT_ASAN ?= batch rowbits sums names emulate growth plans layers
# With GCC 12 on AArch64 the search for leaks takes four seconds of every process: there it is left to those that make and
# free the most different things. Of programs with params, open axes and memory budgets cut and alloc have some.
SEARCHED := lang alloc properties cut grad jit cuda
TSAN = BUILD=$(BUILD)/tsan OPT='-O1 -g1' SAN=-fsanitize=thread
# What computes on memory of its own: a result that is made of bytes nobody wrote ends the test where it is compared. Workspaces and
# outputs count as unwritten before a run, what steps share before each step, a thread's tiles before each tile (EPI_UNWRITTEN).
MSAN_TESTS := micro strips strips_fold tape moves rowloop rows cases attention grad
MSAN = BUILD=$(BUILD)/msan CC=clang OPT='-O1 -g1' SAN=-fsanitize=memory RUN= RUN_TESTS='$(MSAN_TESTS)' CASES_MODE=some GRAD_ROUNDS=40
FUZZED := lang safetensors

LIST_CHECKS = echo 'includes sh tests/test_includes.sh'; echo 'circles sh tests/test_circles.sh $(BUILD)/obj/src/cuda'; \
    echo 'install bash tests/test_install.sh $(BUILD)'; $(foreach f,$(TABLED),echo 'tables $(BUILD)/table --check $f';) \
    $(foreach p,$(PLOTS),echo 'plot $(BUILD)/plot --check $(call plotted,$p)';) echo 'pages bash tests/test_pages.sh README.md docs/tutorial.md docs/hacking.md'
# Pairs are drawn by the commit, so that each commit tries others and one commit always the same; SEED=N repeats a draw.
PAIRS = $(PYTHON) tests/pairs/pairs.py --runner $(BUILD)/test/pairs_run --seed $(or $(SEED),$(shell printf %d 0x$(COMMIT) 2>/dev/null || echo 1))
LIST_PAIRS = echo 'pairs $(PAIRS) --draw 800 --reference'; echo 'pairs_grad $(PAIRS) --draw 200 --types f32 --grad';
LIST_ASAN = echo '\# under AddressSanitizer and UndefinedBehaviorSanitizer:'; $(SUB) $(ASAN) list
LIST_TSAN = echo '\# under ThreadSanitizer:'; echo 'properties $(BUILD)/tsan/test/properties'
LIST_FUZZ = echo '\# on random input:'; \
    $(foreach t,$(FUZZED),echo 'fuzz $(BUILD)/asan/fuzz_$t --seconds $(1) tests/corpus/$t';)

# What plans come to, as they are now: the diff of that file is what is to be judged.
.PHONY: update-plans
update-plans: $(BUILD)/test/plans
	$(BUILD)/test/plans tests/plans.txt --update

# What the library makes of every program, as hashes: build/fingerprint programs tests.
$(BUILD)/fingerprint: $(BUILD)/obj/tests/fingerprint.o $(BUILD)/libepilog.a
	$(call say,LINK)
	$(Q)$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)

# Faults put into the sources, one at a time, and how many of them the suite finds; tests/mutate.sh tells how.
MUTANTS ?= 50
mutate: SEED ?= 1
.PHONY: mutate
mutate:
	@bash tests/mutate.sh $(BUILD)/mutate $(MUTANTS) $(SEED)

# The same table of cases, timed; and what each case compiles to.
.PHONY: perf support
perf support: $(BUILD)/test/cases
	$(BUILD)/test/cases programs $@

suite:
	@$(SUB) $(PARALLEL) tests
	@$(SUB) list | bash tests/run.sh $(BUILD)/log

test:
	@echo 'building: as it is, with AddressSanitizer, with ThreadSanitizer'
	@$(SUB) $(PARALLEL) tests $(BUILD)/table $(BUILD)/plot
	@$(SUB) $(PARALLEL) $(ASAN) tests fuzzers
	@$(SUB) $(PARALLEL) $(TSAN) $(BUILD)/tsan/test/properties
	@{ $(SUB) list; $(LIST_CHECKS); $(LIST_PAIRS) $(LIST_ASAN); $(LIST_TSAN); $(call LIST_FUZZ,5) } | bash tests/run.sh $(BUILD)/log

sanitize:
	@$(SUB) $(PARALLEL) $(ASAN) tests
	@{ $(LIST_ASAN); } | bash tests/run.sh $(BUILD)/asan/log

threads:
	@$(SUB) $(PARALLEL) $(TSAN) $(BUILD)/tsan/test/properties
	@{ $(LIST_TSAN); } | bash tests/run.sh $(BUILD)/tsan/log

# Of the list the tests alone.
.PHONY: test-memory
test-memory:
	@$(SUB) $(PARALLEL) $(MSAN) $(MSAN_TESTS:%=$(BUILD)/msan/test/%)
	@$(SUB) $(MSAN) list | grep ' $(BUILD)/msan/test/' | bash tests/run.sh $(BUILD)/msan/log

# What `make test` has a choice of, whole. What these say before the last line tells what was left out and why.
.PHONY: test-pairs test-pairs-some test-pairs-gpu test-pairs-emulate
test-pairs-some: $(BUILD)/test/pairs_run
	@{ $(LIST_PAIRS) } | bash tests/run.sh $(BUILD)/pairs-log
test-pairs: $(BUILD)/test/pairs_run
	$(PAIRS) --types f32,bf16 --reference
	$(PAIRS) --types f32 --grad
test-pairs-gpu: $(BUILD)/test/pairs_run
	EPILOG_CACHE=$(BUILD)/cache $(PAIRS) --device gpu --jobs $(shell nproc)
test-pairs-emulate: $(BUILD)/test/pairs_emulate
	@mkdir -p $(BUILD)/emulate
	$(PAIRS) --runner $(BUILD)/test/pairs_emulate --types bf16 --together 600
.PHONY: test-texts test-emulate test-hopper test-laws test-rowbits test-sanitize test-full
test-texts: $(BUILD)/test/cuda
	$(BUILD)/test/cuda programs $(BUILD)/cache all
test-emulate: $(BUILD)/test/emulate
	@mkdir -p $(BUILD)/emulate
	$(BUILD)/test/emulate programs $(BUILD)/emulate all
test-hopper: $(BUILD)/test/emulate
	@mkdir -p $(BUILD)/emulate
	$(BUILD)/test/emulate programs $(BUILD)/emulate sweep
test-laws: $(BUILD)/test/laws
	$(BUILD)/test/laws $(LAW_TEXTS) --random 10000 --thorough
test-rowbits: $(BUILD)/test/rowbits
	$(BUILD)/test/rowbits 10000
test-sanitize:
	@$(SUB) sanitize BUILD=$(BUILD)/all ALL_STRIPS=1 NOT_ASAN=emulate ASAN_ROUNDS=200
test-full:
	@$(SUB) test
	@$(SUB) test-sanitize
	@$(SUB) test-rowbits
	@$(SUB) test-pairs
	@$(SUB) test-texts
	@$(SUB) test-emulate
	@$(SUB) test-hopper
	@$(SUB) test-pairs-emulate
	@$(SUB) test-laws
	@! command -v clang >/dev/null || $(SUB) test-memory
	@$(SUB) fuzz

# What needs a GPU: a sample of the table of cases, or all of it; the bits of rows in batches of 1 to 8192; then tiny cases
# under compute-sanitizer where it is
# installed; of the kernels left out of racecheck docs/rows-notes.md tells.
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
.PHONY: test-python test-python-some test-opinfo
test-opinfo: $(BUILD)/venv/torch $(BUILD)/libepilog.so $(BUILD)/libepilog_torch.so
	PYTHONPATH=python $(BUILD)/venv/bin/python python/tests/opinfo.py $(OPINFO)
test-python: PYTESTS :=
test-python: $(BUILD)/venv/ready
test-python-some: PYTESTS := test_op.py test_schema.py test_backend.py test_operations.py test_differences.py test_opinfo.py
test-python-some: $(BUILD)/venv/torch
test-python test-python-some: $(BUILD)/libepilog.so $(BUILD)/libepilog_torch.so
	cd $(BUILD) && EPILOG_BUILD='$(abspath $(BUILD))' venv/bin/pip install -q --no-deps --no-build-isolation --force-reinstall '$(CURDIR)/python'
	cd python/tests && '$(abspath $(BUILD))/venv/bin/python' -m pytest -q -p no:cacheprovider -p no:logging $(PYTESTS)

# Without that index, what torch itself needs is named, and the GPU's libraries are left out where it loads without them.
$(BUILD)/venv/torch:
	$(PYTHON) -m venv $(BUILD)/venv
	$(BUILD)/venv/bin/pip install -q --index-url $(TORCH_INDEX) '$(TORCH)' || $(BUILD)/venv/bin/pip install -q --no-deps '$(TORCH)'
	$(BUILD)/venv/bin/pip install -q filelock typing-extensions sympy networkx jinja2 fsspec numpy 'setuptools>=70.1' pytest expecttest
	$(BUILD)/venv/bin/python -c 'import torch' 2>/dev/null || $(BUILD)/venv/bin/pip install -q '$(TORCH)'
	touch $@
$(BUILD)/venv/ready: $(BUILD)/venv/torch
	$(BUILD)/venv/bin/pip install -q transformers psutil
	$(BUILD)/venv/bin/pip install -q --no-deps peft accelerate
	touch $@

# libFuzzer where clang has it, beside the driver of our own; a bounded time either way.
FUZZ_SECONDS ?= 15
HAS_FUZZER = echo 'int LLVMFuzzerTestOneInput(const char *d, long n){return d && n < 0;}' | clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
LIBFUZZER = $(FUZZED:%=$(BUILD)/fuzzer/libfuzzer_%)
.PHONY: fuzz fuzzers
fuzzers: $(FUZZED:%=$(BUILD)/fuzz_%)
fuzz:
	@$(SUB) $(PARALLEL) $(ASAN) fuzzers
	@rm -rf $(BUILD)/fuzz; mkdir -p $(FUZZED:%=$(BUILD)/fuzz/%)
	@! $(HAS_FUZZER) || $(SUB) $(PARALLEL) CC=clang BUILD=$(BUILD)/fuzzer OPT='-O1 -g' SAN='-fsanitize=fuzzer-no-link,address' $(LIBFUZZER)
	@{ $(call LIST_FUZZ,$(FUZZ_SECONDS)) ! $(HAS_FUZZER) || { \
	    $(foreach t,$(FUZZED),echo 'libFuzzer $(BUILD)/fuzzer/libfuzzer_$t -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/$t tests/corpus/$t';) }; \
	} | bash tests/run.sh $(BUILD)/fuzz/log

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
