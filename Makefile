# Epilog: GNU make and a C17 compiler are all it takes.
#
#   make            the library and the command, in build/
#   make run        the ten kernels on this machine
#   make test       everything the project can check here
#   make install    PREFIX=/usr/local by default

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
BASE := -std=c17 -D_GNU_SOURCE $(OPT) $(WARN) -Iinclude -Isrc -fPIC -fvisibility=hidden $(SAN)
CFLAGS_ALL = $(BASE) $(OPENMP) $(CFLAGS)
LIBS := -lm -lpthread -ldl

ARCH := $(shell $(CC) -dumpmachine | cut -d- -f1)

# ---- sources ----

LIB_SRC := $(filter-out src/cpu/strips.c,$(wildcard src/*/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o)
CLI_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cli/*.c))

# Files of one instruction set get its flags; on other machines they compile to nothing.
STRIP_FLAGS := -O3 -fno-math-errno -fno-trapping-math -ffp-contract=fast
ifeq ($(ARCH),x86_64)
$(BUILD)/obj/src/cpu/micro_avx2.o: ISA := -mavx2 -mfma
$(BUILD)/obj/src/cpu/micro_avx512.o: ISA := -mavx512f
$(BUILD)/obj/src/cpu/micro_avx512bf16.o: ISA := -mavx512f -mavx512bf16
$(BUILD)/obj/src/cpu/micro_amx.o: ISA := -mamx-tile -mamx-bf16
$(BUILD)/obj/src/cpu/pack_f16c.o: ISA := -mavx2 -mf16c
STRIP_TABLES := baseline avx2 avx512
else
STRIP_TABLES := baseline
endif
ifeq ($(ARCH),aarch64)
$(BUILD)/obj/src/cpu/micro_bf16mm.o: ISA := -march=armv8.2-a+bf16
endif
$(BUILD)/obj/src/cpu/reference.o: ISA := -O3
STRIP_OBJ := $(STRIP_TABLES:%=$(BUILD)/obj/src/cpu/strips_%.o)
$(BUILD)/obj/src/cpu/strips_avx2.o: ISA := -mavx2 -mfma -mf16c
$(BUILD)/obj/src/cpu/strips_avx512.o: ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512

OBJ := $(LIB_OBJ) $(STRIP_OBJ)

# ---- building ----

.PHONY: all run bench test install clean
all: $(BUILD)/epilog $(BUILD)/libepilog.so $(BUILD)/libepilog.a

$(BUILD)/obj/%.o: %.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA) -MMD -MP -c $< -o $@

$(BUILD)/obj/cli/%.o: cli/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Icli -DEPI_COMMIT='"$(COMMIT)"' -MMD -MP -c $< -o $@

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

run: $(BUILD)/epilog
	$(BUILD)/epilog bench

clean:
	rm -rf $(BUILD)

-include $(wildcard $(BUILD)/obj/*/*.d $(BUILD)/obj/*/*/*.d)
