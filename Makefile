# Epilog: GNU make and a C17 compiler are all it takes.
#
#   make            the library and the command, in build/
#   make run        the ten kernels on this machine
#   make test       everything the project can check here
#   make install    PREFIX=/usr/local by default

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:

VERSION := 0.1.0
SOVERSION := 0
PREFIX ?= /usr/local
BUILD ?= build

CC ?= cc
OPT ?= -O2 -g
WARN := -Wall -Wextra -Wconversion
OPENMP := $(shell echo 'int main(void){return 0;}' | $(CC) -fopenmp -x c - -o /dev/null 2>/dev/null && echo -fopenmp)
COMMIT := $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
# What every compilation gets; SAN adds a sanitizer to all of it.
BASE := -std=c17 $(OPT) $(WARN) -Iinclude -Isrc -fPIC -fvisibility=hidden $(SAN)
CFLAGS_ALL = $(BASE) $(OPENMP) $(CFLAGS)
LIBS := -lm -lpthread -ldl

ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)

# ---- sources ----

LIB_SRC := $(filter-out src/cpu/strips.c,$(wildcard src/*/*.c)) # strips.c is built once per instruction set
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
CLI_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cli/*.c))

# Files of one instruction set get its flags; on other machines they compile to nothing.
# Sanitizers make the strips long to compile: there they are optimized less.
STRIP_FLAGS := $(if $(SAN),-O1,-O3) -fno-math-errno -fno-trapping-math -ffp-contract=off
ifeq ($(ARCH),x86_64)
$(BUILD)/obj/src/cpu/micro_avx2.o: ISA := -mavx2 -mfma -mprfchw
$(BUILD)/obj/src/cpu/micro_avx512.o: ISA := -mavx512f -mprfchw
$(BUILD)/obj/src/cpu/micro_avx512bf16.o: ISA := -mavx512f -mavx512bf16 -mprfchw
$(BUILD)/obj/src/cpu/micro_amx.o: ISA := -mamx-tile -mamx-bf16 -mprfchw
$(BUILD)/obj/src/cpu/pack_f16c.o: ISA := -mavx2 -mf16c
STRIP_TABLES := baseline avx2 avx512
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

OBJ := $(LIB_OBJ) $(STRIP_OBJ)

# ---- building ----

.PHONY: all run bench bench-gpu readme test install clean
all: $(BUILD)/epilog $(BUILD)/libepilog.so $(BUILD)/libepilog.a

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c $< -o $@

# the device texts and the programs are part of the library
$(BUILD)/obj/src/cuda/embed.o: $(wildcard src/cuda/device/*.cuh)
$(BUILD)/obj/src/lang/bundled.o: $(wildcard programs/*.epi)

# the commit goes into result files, so this file follows it
$(BUILD)/obj/cli/bench.o: $(BUILD)/commit-$(COMMIT)
$(BUILD)/commit-$(COMMIT):
	@mkdir -p $(@D); rm -f $(BUILD)/commit-*; touch $@

$(BUILD)/obj/cli/%.o: cli/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -Icli -DEPI_COMMIT='"$(COMMIT)"' -MMD -MP -c $< -o $@

$(BUILD)/obj/src/cpu/strips_%.o: src/cpu/strips.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(STRIP_FLAGS) $(ISA) -DEPI_STRIPS_ISA=$* -MMD -MP -c $< -o $@

$(BUILD)/obj/src/cpu/strips_choose.o: src/cpu/strips_choose.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -c $< -o $@

$(BUILD)/libepilog.a: $(OBJ)
	@rm -f $@
	$(AR) rcs $@ $^

$(BUILD)/libepilog.so: $(OBJ)
	$(CC) $(CFLAGS_ALL) -shared -Wl,-soname,libepilog.so.$(SOVERSION) -o $@.$(VERSION) $^ $(LIBS)
	ln -sf libepilog.so.$(VERSION) $@.$(SOVERSION)
	ln -sf libepilog.so.$(SOVERSION) $@

$(BUILD)/epilog: $(CLI_OBJ) $(BUILD)/libepilog.a
	$(CC) $(CFLAGS_ALL) -o $@ $^ $(LIBS)

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

# The tables of the README, the results and the notes from the result files that they name, and the README's plot.
TABLED := README.md docs/results.md $(wildcard docs/*-notes.md)
PLOTTED := bench/results/h200-torch.json 4096 docs/kernels.svg
readme: $(BUILD)/table $(BUILD)/plot
	@set -e; for f in $(TABLED); do echo $$f; $(BUILD)/table $$f; done
	@echo $(lastword $(PLOTTED)); $(BUILD)/plot $(PLOTTED)

$(BUILD)/table: $(wildcard bench/table*.c)
$(BUILD)/plot: bench/plot.c
$(BUILD)/table $(BUILD)/plot: bench/record.c bench/record.h $(BUILD)/libepilog.a
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -o $@ $(filter %.c,$^) $(BUILD)/libepilog.a $(LIBS)

# Two builds of the library timed against each other: build/ab OLD.so NEW.so; bench/ab.c tells its options.
$(BUILD)/ab: bench/ab.c include/epilog.h
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -o $@ $< -lm -ldl

# ---- tests ----

TESTS := micro strips strips_fold tape json safetensors lang moves properties random rowloop cases rows formulas indices puzzle docs jit cuda names emulate
TEST_BIN := $(TESTS:%=$(BUILD)/test/%)
EXAMPLES := $(patsubst examples/%.c,$(BUILD)/example/%,$(wildcard examples/*.c))

$(BUILD)/test/%: tests/test_%.c $(BUILD)/libepilog.a $(wildcard tests/*.h tests/emulate/*.h)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -Itests -o $@ $< $(BUILD)/libepilog.a $(LIBS)

$(BUILD)/example/%: examples/%.c $(BUILD)/libepilog.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -o $@ $< $(BUILD)/libepilog.a $(LIBS)

# One suite, run in the plain build and again under the sanitizers.
.PHONY: suite sanitize threads fuzz tests
tests: all $(TEST_BIN) $(EXAMPLES)
suite: all $(TEST_BIN) $(EXAMPLES)
	@set -e; for t in $(TESTS); do \
	    case $$t in cases|rows|formulas|indices|puzzle) args=programs;; random) args=$(ROUNDS);; docs) args=docs/language.md;; \
	        cuda|names) args="programs $(BUILD)/cache $(CUDA_MODE)";; \
	        emulate) args="programs $(BUILD)/emulate $(CUDA_MODE)";; *) args=;; esac; \
	    printf '%-12s ' $$t; $(BUILD)/test/$$t $$args >$(BUILD)/test/$$t.log 2>&1 || { tail -40 $(BUILD)/test/$$t.log; exit 1; }; \
	    tail -n 1 $(BUILD)/test/$$t.log; done
	@set -e; for e in $(EXAMPLES); do printf '%-12s ' example; $$e >$$e.log || { cat $$e.log; exit 1; }; echo $$(basename $$e) runs; done
	@printf '%-12s ' command; bash tests/test_cli.sh $(BUILD)/epilog

# The same table of cases, timed; and what each case compiles to.
.PHONY: perf support
perf support: $(BUILD)/test/cases
	$(BUILD)/test/cases programs $@

ROUNDS ?= 400
test: suite
	@printf '%-12s ' includes; sh tests/test_includes.sh
	@printf '%-12s ' circles; sh tests/test_circles.sh $(BUILD)/obj/src/cuda
	@printf '%-12s ' install; bash tests/test_install.sh $(BUILD)
	@$(MAKE) --no-print-directory -s $(BUILD)/table $(BUILD)/plot
	@set -e; for f in $(TABLED); do printf '%-12s ' $$(basename $$f .md | tr A-Z a-z); $(BUILD)/table --check $$f; done
	@printf '%-12s ' plot; $(BUILD)/plot --check $(PLOTTED)
	@$(MAKE) --no-print-directory sanitize
	@$(MAKE) --no-print-directory threads
	@$(MAKE) --no-print-directory fuzz
	@echo; cat $(BUILD)/test/*.log | awk '/^[0-9]+ passed, [0-9]+ failed/ { p += $$1; f += $$3 } END { print p " passed, " f " failed" }'

sanitize:
	@echo 'under AddressSanitizer and UndefinedBehaviorSanitizer:'
	@$(MAKE) --no-print-directory -s -j$$(nproc) BUILD=$(BUILD)/asan OPT='-O1 -g' SAN='-fsanitize=address,undefined -fno-sanitize-recover=all' tests
	@ASAN_OPTIONS=allocator_may_return_null=1 $(MAKE) --no-print-directory -s BUILD=$(BUILD)/asan ROUNDS=60 CUDA_MODE=texts OPT='-O1 -g' SAN='-fsanitize=address,undefined -fno-sanitize-recover=all' suite

# What needs a GPU: the table of cases in full, then tiny ones under compute-sanitizer where it is installed; of the
# kernels left out of racecheck docs/rows-notes.md tells.
.PHONY: test-gpu
test-gpu: $(BUILD)/test/gpu
	EPILOG_CACHE=$(BUILD)/cache EPILOG_NEED_GPU=1 $(BUILD)/test/gpu programs full
	@if command -v compute-sanitizer >/dev/null; then for tool in memcheck 'racecheck --kernel-name-exclude kns=row_'; do \
	    printf '%-12s ' "$${tool%% *}"; EPILOG_CACHE=$(BUILD)/cache EPILOG_NEED_GPU=1 \
	        compute-sanitizer --tool $$tool --error-exitcode 1 $(BUILD)/test/gpu programs sanitize || exit 1; done; \
	else echo 'compute-sanitizer is not on the path: memcheck and racecheck are left out'; fi

# All products of the table of cases in all of Hopper's configurations, on an emulator; `make test` has a few of them.
.PHONY: test-hopper
test-hopper: $(BUILD)/test/emulate
	@mkdir -p $(BUILD)/emulate && $(BUILD)/test/emulate programs $(BUILD)/emulate sweep

# OpenMP's runtime is opaque to ThreadSanitizer, so this build uses POSIX threads.
threads:
	@echo 'under ThreadSanitizer:'
	@$(MAKE) --no-print-directory -s -j$$(nproc) BUILD=$(BUILD)/tsan OPENMP= OPT='-O1 -g' SAN=-fsanitize=thread $(BUILD)/tsan/test/properties
	@printf '%-12s ' properties; $(BUILD)/tsan/test/properties

# libFuzzer where clang has it, else the driver of our own; a bounded time either way.
FUZZ_SECONDS ?= 15
HAS_FUZZER = echo 'int LLVMFuzzerTestOneInput(const char *d, long n){return d && n < 0;}' | clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
fuzz:
	@for t in lang safetensors; do \
	    rm -rf $(BUILD)/fuzz/$$t; mkdir -p $(BUILD)/fuzz/$$t; \
	    $(MAKE) --no-print-directory -s BUILD=$(BUILD)/asan OPT='-O1 -g' SAN='-fsanitize=address,undefined -fno-sanitize-recover=all' \
	        $(BUILD)/asan/fuzz_$$t || exit 1; \
	    printf '%-12s ' fuzz; $(BUILD)/asan/fuzz_$$t --seconds $(FUZZ_SECONDS) tests/corpus/$$t || exit 1; done
	@if $(HAS_FUZZER); then for t in lang safetensors; do \
	    $(MAKE) --no-print-directory -s CC=clang BUILD=$(BUILD)/fuzzer OPENMP= OPT='-O1 -g' SAN='-fsanitize=fuzzer-no-link,address' \
	        $(BUILD)/fuzzer/libfuzzer_$$t || exit 1; \
	    printf '%-12s ' libFuzzer; $(BUILD)/fuzzer/libfuzzer_$$t -max_total_time=$(FUZZ_SECONDS) -verbosity=0 -print_final_stats=1 \
	        -artifact_prefix=$(BUILD)/fuzz/ $(BUILD)/fuzz/$$t tests/corpus/$$t 2>$(BUILD)/fuzz/$$t.log || { tail -40 $(BUILD)/fuzz/$$t.log; exit 1; }; \
	    echo $$t: $$(awk '/number_of_executed_units/ { print $$2 }' $(BUILD)/fuzz/$$t.log) runs; done; fi

$(BUILD)/fuzz_%: tests/fuzz_%.c tests/fuzz_main.c $(BUILD)/libepilog.a
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -o $@ $^ $(LIBS)

$(BUILD)/libfuzzer_%: tests/fuzz_%.c $(BUILD)/libepilog.a
	$(CC) $(CFLAGS_ALL) -D_GNU_SOURCE -fsanitize=fuzzer -o $@ $^ $(LIBS)

# The suite for the other of both architectures, where a cross compiler and qemu-user are installed. What the emulator does not
# know (AVX-512), it does not test.
OTHER := $(if $(filter x86_64,$(ARCH)),aarch64,x86_64)
CROSS_TESTS := micro strips strips_fold tape json safetensors lang moves properties random rowloop docs cuda
.PHONY: test-cross
test-cross:
	@$(MAKE) --no-print-directory -s CC=$(OTHER)-linux-gnu-gcc AR=$(OTHER)-linux-gnu-ar BUILD=$(BUILD)/$(OTHER) $(CROSS_TESTS:%=$(BUILD)/$(OTHER)/test/%)
	@set -e; qemu=$$(command -v qemu-$(OTHER) || command -v qemu-$(OTHER)-static || echo qemu-$(OTHER)); for t in $(CROSS_TESTS); do \
	    case $$t in random) args=40;; docs) args=docs/language.md;; cuda) args="programs $(BUILD)/cache texts";; *) args=;; esac; printf '%-12s ' $$t; \
	    $$qemu -cpu max -L /usr/$(OTHER)-linux-gnu $(BUILD)/$(OTHER)/test/$$t $$args >$(BUILD)/$(OTHER)/test/$$t.log; \
	    tail -n 1 $(BUILD)/$(OTHER)/test/$$t.log; done

# ---- installing ----

DEST = $(DESTDIR)$(PREFIX)
install: all
	mkdir -p '$(DEST)/bin' '$(DEST)/include' '$(DEST)/lib/pkgconfig' '$(DEST)/lib/cmake/epilog' '$(DEST)/share/epilog/programs'
	cp $(BUILD)/epilog '$(DEST)/bin/'
	cp include/epilog.h '$(DEST)/include/'
	cp $(BUILD)/libepilog.a $(BUILD)/libepilog.so.$(VERSION) '$(DEST)/lib/'
	ln -sf libepilog.so.$(VERSION) '$(DEST)/lib/libepilog.so.$(SOVERSION)'
	ln -sf libepilog.so.$(SOVERSION) '$(DEST)/lib/libepilog.so'
	cp programs/*.epi '$(DEST)/share/epilog/programs/'
	sed 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@OPENMP@|$(OPENMP)|' epilog.pc.in >'$(DEST)/lib/pkgconfig/epilog.pc'
	sed 's|@VERSION@|$(VERSION)|; s|@SOVERSION@|$(SOVERSION)|' epilog-config.cmake.in >'$(DEST)/lib/cmake/epilog/epilog-config.cmake'

clean:
	rm -rf $(BUILD)

-include $(wildcard $(BUILD)/obj/*/*.d $(BUILD)/obj/*/*/*.d)
