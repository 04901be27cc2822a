# Every record that the tables quote, and how it is made.
#
#   make -n records     what is missing, and about how long it takes
#   make records        makes it; a run that was cut resumes
#   make record-NAME    makes one
#
# train.NAME is the binary and its flags, suites.NAME what then evaluates the
# run, minutes.NAME about what both take on two quiet cores. Give DATA_DIR, the
# folder of the data sets, and RUNS, where runs are kept. A record is refused
# unless the code is as it was committed.

DATA_DIR ?= $(or $(CAPJAX_DATA_DIR),data)
RUNS ?= runs
NICE ?= nice -n 19
presets := --flagfile=experiments/presets

# $(call seeds,NAME,SEEDS): one record for each seed of train.NAME.
define seed
train.$(1)-$(2) := $$(train.$(1)) --seed=$(2)
suites.$(1)-$(2) := $$(suites.$(1))
minutes.$(1)-$(2) := $$(minutes.$(1))
RECORDS += $(1)-$(2)
endef
seeds = $(foreach number,$(2),$(eval $(call seed,$(1),$(number))))

train.digits := train_capsnet $(presets)/digits.cfg
minutes.digits := 1
$(call seeds,digits,0 1 2)

train.transforming_mnist := train_transforming $(presets)/transforming_mnist.cfg
suites.transforming_mnist := coordinates,unseen_shifts,few_labels
minutes.transforming_mnist := 2
$(call seeds,transforming_mnist,0 1 2)

train.transforming_fashion := train_transforming $(presets)/transforming_fashion.cfg
minutes.transforming_fashion := 2
$(call seeds,transforming_fashion,0 1 2)

train.transforming_mnist_affine := train_transforming $(presets)/transforming_mnist_affine.cfg
minutes.transforming_mnist_affine := 7
$(call seeds,transforming_mnist_affine,0 1 2)

.PHONY: records list-records
records: $(RECORDS:%=results/records/%.jsonl)
record-%: results/records/%.jsonl ;

list-records:
	@$(foreach name,$(RECORDS),echo "$(name): $(train.$(name))";)

results/records/%.jsonl: | .venv
	@echo "# $*: about $(minutes.$*) minutes on two cores"
	$(NICE) $(BIN)/python -m experiments.$(train.$*) \
	  --workdir=$(RUNS)/$* --data_dir=$(DATA_DIR)
	$(if $(suites.$*),$(NICE) $(BIN)/python -m experiments.evaluate \
	  --workdir=$(RUNS)/$* --data_dir=$(DATA_DIR) --suite=$(suites.$*))
	$(BIN)/python -m experiments.record --workdir=$(RUNS)/$* --out=$@
