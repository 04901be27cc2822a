# Every record of results/records, and how it is made. results/evaluate.jsonl holds
# eleven older evaluations, which no target makes.
#
#   make -n records     what is missing, and about how long it takes
#   make records        makes it; a run that was cut resumes
#   make record-NAME    makes one
#   make missing-suites what records lack that their targets name by now
#   make measurements   times and memory of routings, what is not finite, and
#                       what steps cost on many devices
#
# train.NAME is the binary and its flags, suites.NAME what then evaluates the
# run, options.NAME further flags of the evaluation, needs.NAME other runs that it
# reads, which are trained first, minutes.NAME about what both take on two quiet
# cores: an estimate where no record stands yet. Give DATA_DIR, the folder of the data sets, and RUNS, where
# runs are kept. A record is refused unless the code is as it was committed.

DATA_DIR ?= $(or $(CAPJAX_DATA_DIR),data)
RUNS ?= runs
NICE ?= nice -n 19
presets := --flagfile=experiments/presets
comma := ,
define newline


endef

# $(call seeds,NAME,SEEDS): one record for each seed of train.NAME.
define seed
train.$(1)-$(2) := $$(train.$(1)) --seed=$(2)
suites.$(1)-$(2) := $$(suites.$(1))
minutes.$(1)-$(2) := $$(minutes.$(1))
RECORDS += $(1)-$(2)
endef
seeds = $(foreach number,$(2),$(eval $(call seed,$(1),$(number))))

train.digits := train_capsnet $(presets)/capsnet/digits.cfg
suites.digits := equivariance
minutes.digits := 2
$(call seeds,digits,0 1 2)

train.mnist_full_cpu := train_capsnet $(presets)/capsnet/mnist_full_cpu.cfg
suites.mnist_full_cpu := diagnostics,equivariance,crowding,calibration,out_of_distribution,letters
minutes.mnist_full_cpu := 50
$(call seeds,mnist_full_cpu,0)

# The cells of the paper's table 1 at its size: iterations and decoder.
fifty := train_capsnet $(presets)/capsnet/mnist_50_epochs.cfg
train.mnist_50_3_paper := $(fifty)
train.mnist_50_1_paper := $(fifty) --num_iterations=1
train.mnist_50_3_none := $(fifty) --reconstruction=none
train.mnist_50_1_none := $(fifty) --num_iterations=1 --reconstruction=none
suites.mnist_50_3_paper := diagnostics,calibration,out_of_distribution,letters
$(foreach cell,3_paper 1_paper 3_none 1_none,\
  $(eval minutes.mnist_50_$(cell) := 250)\
  $(call seeds,mnist_50_$(cell),0 1 2))

train.mnist_cpu := train_capsnet $(presets)/capsnet/mnist_cpu.cfg
suites.mnist_cpu := attacks,views,diagnostics,affnist_like,equivariance,crowding
minutes.mnist_cpu := 45
$(call seeds,mnist_cpu,0)

train.mnist_cpu_scale_1 := train_capsnet $(presets)/capsnet/mnist_cpu.cfg --primary_scale=1
suites.mnist_cpu_scale_1 := attacks,views,diagnostics,affnist_like,equivariance
minutes.mnist_cpu_scale_1 := 45
$(call seeds,mnist_cpu_scale_1,0)

train.mnist_cpu_baseline := train_capsnet $(presets)/capsnet/mnist_cpu_baseline.cfg
suites.mnist_cpu_baseline := attacks,views,equivariance,crowding,calibration,out_of_distribution,letters
minutes.mnist_cpu_baseline := 8
$(call seeds,mnist_cpu_baseline,0)

train.fashion_mnist_cpu := train_capsnet $(presets)/capsnet/fashion_mnist_cpu.cfg
minutes.fashion_mnist_cpu := 29
$(call seeds,fashion_mnist_cpu,0)

train.fashion_mnist_cpu_scale_1 := train_capsnet $(presets)/capsnet/fashion_mnist_cpu.cfg --primary_scale=1
minutes.fashion_mnist_cpu_scale_1 := 29
$(call seeds,fashion_mnist_cpu_scale_1,0)

train.affnist_like_cpu := train_capsnet $(presets)/capsnet/affnist_like_cpu.cfg
suites.affnist_like_cpu := affnist_like,equivariance
minutes.affnist_like_cpu := 15
$(call seeds,affnist_like_cpu,0 1 2)

train.affnist_like_cpu_scale_1 := train_capsnet $(presets)/capsnet/affnist_like_cpu.cfg --primary_scale=1
suites.affnist_like_cpu_scale_1 := affnist_like,equivariance
minutes.affnist_like_cpu_scale_1 := 15
$(call seeds,affnist_like_cpu_scale_1,0 1 2)

train.affnist_like_cpu_baseline := train_capsnet $(presets)/capsnet/affnist_like_cpu_baseline.cfg
suites.affnist_like_cpu_baseline := affnist_like,equivariance
minutes.affnist_like_cpu_baseline := 20
$(call seeds,affnist_like_cpu_baseline,0 1 2)

# The rate was chosen on validation images after 600 updates, between 0.001 and 0.004.
train.affnist_like_cpu_self := $(train.affnist_like_cpu) --routing=self --learning_rate=0.004
suites.affnist_like_cpu_self := affnist_like
options.affnist_like_cpu_self-0 := --images=2500
minutes.affnist_like_cpu_self := 20
$(call seeds,affnist_like_cpu_self,0)

# About as many weights as matrix capsules, which all positions share as theirs.
train.affnist_like_cpu_average := $(train.affnist_like_cpu_baseline) \
  --cnn_features=32,64,64 --cnn_kernels=5,3,3 --cnn_pool=2 --cnn_average
suites.affnist_like_cpu_average := affnist_like
minutes.affnist_like_cpu_average := 4
$(call seeds,affnist_like_cpu_average,0 1 2)

# Iterations, decoders and the primary layer's scale at a quarter of the widths.
quarter := train_capsnet $(presets)/capsnet/mnist_quarter_cpu.cfg
train.quarter_3_paper := $(quarter)
train.quarter_3_paper_last := $(quarter) --routing_gradient=last
train.quarter_1_paper := $(quarter) --num_iterations=1
train.quarter_3_none := $(quarter) --reconstruction=none
train.quarter_1_none := $(quarter) --num_iterations=1 --reconstruction=none
train.quarter_3_official := $(quarter) --reconstruction=official
train.quarter_1_official := $(quarter) --num_iterations=1 --reconstruction=official
train.quarter_3_paper_scale_1 := $(quarter) --primary_scale=1
train.quarter_3_paper_raw := $(quarter) --average_decay=0
minutes.quarter_3_paper := 10
minutes.quarter_3_paper_last := 10
minutes.quarter_1_paper := 9
minutes.quarter_3_none := 9
minutes.quarter_1_none := 8
minutes.quarter_3_official := 10
minutes.quarter_1_official := 9
minutes.quarter_3_paper_scale_1 := 10
minutes.quarter_3_paper_raw := 10
suites.quarter_3_paper := attacks,views,diagnostics,affnist_like,equivariance,out_of_distribution,crowding,letters
$(foreach cell,3_paper 1_paper 3_none 1_none 3_official 1_official \
  3_paper_scale_1 3_paper_raw 3_paper_last,$(call seeds,quarter_$(cell),0 1 2))

# Crops, mirror images and changes of light (Sabour et al., 2017, section 7), and shifts
# alone. The last seed is also evaluated in an ensemble with the others.
$(foreach cell,quarter crops,\
  $(eval train.fashion_$(cell) := train_capsnet $(presets)/capsnet/fashion_$(cell)_cpu.cfg)\
  $(eval suites.fashion_$(cell) := calibration$(comma)out_of_distribution)\
  $(eval minutes.fashion_$(cell) := 4)\
  $(call seeds,fashion_$(cell),0 1 2)\
  $(eval suites.fashion_$(cell)-2 := $(suites.fashion_$(cell)-2)$(comma)ensemble)\
  $(eval needs.fashion_$(cell)-2 := fashion_$(cell)-0 fashion_$(cell)-1)\
  $(eval options.fashion_$(cell)-2 := \
    --ensemble=$(RUNS)/fashion_$(cell)-0$(comma)$(RUNS)/fashion_$(cell)-1))

train.efficient_mnist_cpu := train_capsnet $(presets)/capsnet/efficient_mnist_cpu.cfg
suites.efficient_mnist_cpu := equivariance
minutes.efficient_mnist_cpu := 95
$(call seeds,efficient_mnist_cpu,0 1 2)
suites.efficient_mnist_cpu-2 := $(suites.efficient_mnist_cpu-2),ensemble
needs.efficient_mnist_cpu-2 := efficient_mnist_cpu-1
options.efficient_mnist_cpu-2 := --ensemble=$(RUNS)/efficient_mnist_cpu-1

train.routings_cpu_dynamic := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=dynamic
minutes.routings_cpu_dynamic := 5
$(call seeds,routings_cpu_dynamic,0)

train.routings_cpu_dynamic_scale_1 := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=dynamic --primary_scale=1
minutes.routings_cpu_dynamic_scale_1 := 5
$(call seeds,routings_cpu_dynamic_scale_1,0 1 2)
# For the controls of these suites, which need no model.
suites.routings_cpu_dynamic_scale_1-1 := equivariance,out_of_distribution,letters

train.routings_cpu_self := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=self
minutes.routings_cpu_self := 5
$(call seeds,routings_cpu_self,0)

train.routings_cpu_self_scale_1 := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=self --primary_scale=1
minutes.routings_cpu_self_scale_1 := 5
$(call seeds,routings_cpu_self_scale_1,0 1 2)

train.routings_cpu_inverted_attention := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=inverted_attention
minutes.routings_cpu_inverted_attention := 5
$(call seeds,routings_cpu_inverted_attention,0)

train.routings_cpu_inverted_attention_scale_1 := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=inverted_attention --primary_scale=1
minutes.routings_cpu_inverted_attention_scale_1 := 5
$(call seeds,routings_cpu_inverted_attention_scale_1,0 1 2)

train.routings_cpu_variational := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=variational
minutes.routings_cpu_variational := 5
$(call seeds,routings_cpu_variational,0)

train.routings_cpu_variational_scale_1 := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=variational --primary_scale=1
minutes.routings_cpu_variational_scale_1 := 5
$(call seeds,routings_cpu_variational_scale_1,0 1 2)

train.routings_cpu_self_attention := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=self_attention
minutes.routings_cpu_self_attention := 3
$(call seeds,routings_cpu_self_attention,0)

train.routings_cpu_self_attention_scale_1 := train_capsnet $(presets)/capsnet/routings_cpu.cfg --routing=self_attention --primary_scale=1
minutes.routings_cpu_self_attention_scale_1 := 3
$(call seeds,routings_cpu_self_attention_scale_1,0 1 2)

# Properties of routings on the embedded digits: docs/results/routings.md.
routed := train_capsnet $(presets)/capsnet/routings_digits.cfg
sceptics := costs,moved,more_routing,parse_tree,starvation
# $(call property,CELL,FLAGS)
define property
train.routings_digits_$(1) := $$(routed) $(2)
suites.routings_digits_$(1) := $$(sceptics)
minutes.routings_digits_$(1) := 1
$$(call seeds,routings_digits_$(1),0 1 2)
endef
$(foreach routing,dynamic self inverted_attention variational self_attention em \
  uniform top1 sinkhorn heinsen_em heinsen_vectors prototype shared_prototype orthcaps,\
  $(eval $(call property,$(routing),--routing=$(routing))))
$(eval $(call property,dynamic_depth_2,--hidden_capsules=16))
$(eval $(call property,dynamic_depth_3,--hidden_capsules=16$(comma)16))
$(eval $(call property,uniform_depth_3,--routing=uniform --hidden_capsules=16$(comma)16))

# Networks without capsules: of as many parameters as with dynamic routing, and as
# many operations; and of as many parameters, and operations as with even shares.
$(foreach cell,cnn cnn_few,\
  $(eval suites.routings_digits_$(cell) := costs$(comma)moved)\
  $(eval minutes.routings_digits_$(cell) := 1))
without := train_capsnet $(presets)/capsnet/routings_digits_cnn.cfg
train.routings_digits_cnn := $(without)
train.routings_digits_cnn_few := $(without) --cnn_features=32,64 --cnn_dense=307
$(call seeds,routings_digits_cnn,0 1 2)
$(call seeds,routings_digits_cnn_few,0 1 2)

# Convolutional capsules above a residual front, 1 to 3 layers of them; those of
# DeepCaps, whose parents compete over the grid, as "grid".
depths := 8 8$(comma)8 8$(comma)8$(comma)8
# $(call network,DATA,CELL,DEPTHS,MINUTES,FLAGS)
define network
$(foreach depth,$(3),$(eval train.networks_$(1)_$(2)_$(depth) := train_capsnet \
  $(presets)/capsnet/networks_$(1)_cpu.cfg --conv_capsules=$(word $(depth),$(depths)) $(5))\
  $(eval suites.networks_$(1)_$(2)_$(depth) := costs,starvation)\
  $(eval minutes.networks_$(1)_$(2)_$(depth) := $(4))\
  $(call seeds,networks_$(1)_$(2)_$(depth),0))
endef
$(foreach data,mnist fashion,\
  $(call network,$(data),uniform,1 2 3,3,--routing=uniform)\
  $(call network,$(data),dynamic,1 2 3,4,--routing=dynamic)\
  $(call network,$(data),grid,1 2 3,3,--conv_competition=grid)\
  $(call network,$(data),self,1 2 3,3,--routing=self)\
  $(call network,$(data),self_attention,1 2 3,5,--routing=self_attention)\
  $(call network,$(data),sinkhorn,1 2 3,6,--routing=sinkhorn)\
  $(call network,$(data),top1,1 2 3,5,--routing=top1)\
  $(call network,$(data),prototype,1 2 3,5,--routing=prototype)\
  $(call network,$(data),shared_prototype,1 2 3,5,--routing=shared_prototype)\
  $(call network,$(data),heinsen_vectors,1 2 3,10,--routing=heinsen_vectors)\
  $(call network,$(data),inverted_attention,1 2 3,10,--routing=inverted_attention)\
  $(call network,$(data),variational,1 2 3,9,--routing=variational)\
  $(call network,$(data),orthcaps,1 2 3,10,--routing=orthcaps)\
  $(call network,$(data),heinsen_em,1 2 3,9,--routing=heinsen_em)\
  $(call network,$(data),em,1 2 3,9,--routing=em))

# More seeds of one of these, and a network without capsules of as many parameters
# and operations.
train.networks_cnn_mnist := train_capsnet $(presets)/capsnet/networks_cnn_cpu.cfg
train.networks_cnn_fashion := $(train.networks_cnn_mnist) --dataset=fashion_mnist
$(foreach data,mnist fashion,\
  $(call seeds,networks_$(data)_dynamic_1,1 2)\
  $(eval suites.networks_cnn_$(data) := costs)\
  $(eval minutes.networks_cnn_$(data) := 2)\
  $(call seeds,networks_cnn_$(data),0 1 2))

# Those of digits also see clothes and letters.
others := out_of_distribution$(comma)letters
$(foreach run,mnist_dynamic_1-1 mnist_dynamic_1-2 cnn_mnist-0 cnn_mnist-1 cnn_mnist-2,\
  $(eval suites.networks_$(run) := $(suites.networks_$(run))$(comma)$(others)))

# Routings of the embedded digits that are trained with other numbers of iterations
# than 3 (dynamic, variational, EM) or 2 (inverted attention).
$(foreach routing,dynamic variational inverted_attention em,$(foreach count,1 5,\
  $(eval train.iterations_digits_$(routing)_$(count) := \
    $(routed) --routing=$(routing) --num_iterations=$(count))\
  $(eval minutes.iterations_digits_$(routing)_$(count) := 2)\
  $(call seeds,iterations_digits_$(routing)_$(count),0 1 2)))

# Routings whose poses are means of votes, with matrices that start larger, so that poses
# keep their size between layers. (In the last layer alone, without a decoder, those of
# self-routing do not matter: activations do not depend on its votes.)
scaled := --transforms_scale=0.35
$(foreach routing,variational em heinsen_em,\
  $(eval train.scaled_digits_$(routing) := $(routed) --routing=$(routing) $(scaled))\
  $(eval minutes.scaled_digits_$(routing) := 2)\
  $(call seeds,scaled_digits_$(routing),0 1 2))
$(foreach routing,variational em heinsen_em self,\
  $(foreach depth,1 2 3,\
    $(eval train.scaled_mnist_$(routing)_$(depth) := \
      $(train.networks_mnist_$(routing)_$(depth)) $(scaled))\
    $(eval minutes.scaled_mnist_$(routing)_$(depth) := 10)\
    $(call seeds,scaled_mnist_$(routing)_$(depth),0)))

# The same, with the gradient of the last iteration alone.
$(foreach routing,dynamic variational em sinkhorn inverted_attention heinsen_em \
  heinsen_vectors,\
  $(eval train.last_digits_$(routing) := \
    $(routed) --routing=$(routing) --routing_gradient=last)\
  $(eval minutes.last_digits_$(routing) := 2)\
  $(call seeds,last_digits_$(routing),0 1 2))

# What poses tell of movements, of one model of each family on the embedded digits.
# Those of the table of routings have seeds that it does not have.
# $(call poses,CELL,SEEDS,BINARY,PRESET,FLAGS)
define poses
train.poses_digits_$(1) := $(3) $(presets)/$(4).cfg $(5)
suites.poses_digits_$(1) := equivariance
minutes.poses_digits_$(1) := 2
$$(call seeds,poses_digits_$(1),$(2))
endef
$(eval $(call poses,dynamic,3 4 5,train_capsnet,capsnet/routings_digits))
$(eval $(call poses,self,3 4 5,train_capsnet,capsnet/routings_digits,--routing=self))
$(eval $(call poses,cnn,3 4 5,train_capsnet,capsnet/routings_digits_cnn))
$(eval $(call poses,matrix,0 1 2,train_matrix_capsules,matrix_capsules/matrix_capsules_quick))
$(eval $(call poses,transforming,0 1 2,train_transforming,transforming/transforming_quick))
$(eval $(call poses,generative,0 1 2,train_generative,generative/generative_quick))
$(eval $(call poses,scae,0 1 2,train_scae,scae/scae_quick))

# The same of digits placed on 40x40, as for affNIST, and of viewpoint solids; those of
# CapsNet and the CNN on digits are affnist_like_cpu and its baseline, of matrix
# capsules, CapsNets and CNNs on solids the records of viewpoints below.
# $(call moved_poses,CELL,MINUTES,BINARY,PRESET,FLAGS)
define moved_poses
train.poses_$(1) := $(strip $(3)) $(presets)/$(strip $(4)).cfg $(5)
suites.poses_$(1) := equivariance,out_of_distribution
minutes.poses_$(1) := $(2)
$$(call seeds,poses_$(1),0)
endef
$(eval $(call moved_poses,placed_self,10,train_capsnet,capsnet/affnist_like_cpu,\
  --routing=self --num_steps=3000))
$(eval $(call moved_poses,placed_matrix,8,train_matrix_capsules,\
  matrix_capsules/matrix_mnist_cpu,--canvas=40 --num_steps=1200 --eval_every=400))
$(eval $(call moved_poses,placed_transforming,9,train_transforming,\
  transforming/transforming_mnist_affine,--canvas=40))
$(eval $(call moved_poses,placed_generative,10,train_generative,\
  generative/generative_mnist_40_cpu,--num_steps=3000 --eval_every=1000 \
  --decay_steps=1000 --gaussian_poses))
solids := --dataset=viewpoint_solids
$(eval $(call moved_poses,solids_transforming,10,train_transforming,\
  transforming/transforming_mnist_affine,$(solids) --num_steps=8000))
$(eval $(call moved_poses,solids_scae,10,train_scae,scae/scae_ablation,$(solids)))
$(eval $(call moved_poses,solids_generative,12,train_generative,\
  generative/generative_mnist_cpu,$(solids) --num_steps=1500))
$(foreach cell,transforming scae generative,\
  $(eval suites.poses_solids_$(cell)-0 := equivariance))
$(foreach cell,self transforming generative,\
  $(eval suites.poses_placed_$(cell)-0 := \
    equivariance$(comma)out_of_distribution$(comma)letters))
# Matrix capsules are also scored on affine views, of fewer digits than others.
$(foreach run,matrix matrix-0,\
  $(eval suites.poses_placed_$(run) := \
    equivariance$(comma)out_of_distribution$(comma)letters$(comma)affnist_like))
$(call seeds,poses_placed_matrix,1 2)
$(foreach number,0 1 2,$(eval options.poses_placed_matrix-$(number) := --images=1000))

train.multimnist_cpu := train_multimnist $(presets)/multimnist/multimnist_cpu.cfg
minutes.multimnist_cpu := 15
$(call seeds,multimnist_cpu,0 1 2)

train.multimnist_cpu_scale_1 := train_multimnist $(presets)/multimnist/multimnist_cpu.cfg --primary_scale=1
minutes.multimnist_cpu_scale_1 := 15
$(call seeds,multimnist_cpu_scale_1,0)

train.multimnist_cpu_baseline := train_multimnist $(presets)/multimnist/multimnist_cpu_baseline.cfg
minutes.multimnist_cpu_baseline := 11
$(call seeds,multimnist_cpu_baseline,0 1 2)

# 15 times as long.
train.multimnist_long := $(train.multimnist_cpu) --num_steps=60000 --log_every=500
train.multimnist_long_baseline := $(train.multimnist_cpu_baseline) \
  --num_steps=60000 --log_every=500
minutes.multimnist_long := 240
minutes.multimnist_long_baseline := 165
$(call seeds,multimnist_long,0)
$(call seeds,multimnist_long_baseline,0)

train.matrix_mnist_cpu := train_matrix_capsules $(presets)/matrix_capsules/matrix_mnist_cpu.cfg
suites.matrix_mnist_cpu := equivariance
minutes.matrix_mnist_cpu := 26
$(call seeds,matrix_mnist_cpu,0)

train.matrix_mnist := train_matrix_capsules $(presets)/matrix_capsules/matrix_mnist.cfg
suites.matrix_mnist := equivariance
minutes.matrix_mnist := 260
$(call seeds,matrix_mnist,0 1 2)

# Half as long: 16 epochs.
train.matrix_mnist_half := $(train.matrix_mnist) --num_steps=15000
suites.matrix_mnist_half := equivariance
minutes.matrix_mnist_half := 105
$(call seeds,matrix_mnist_half,0 1 2)

# Viewpoint solids: capsules and the CNN, by the viewpoints that training leaves out.
# The CNN is trained once as long as the capsules, and once until it has the accuracy
# from familiar viewpoints that the capsules of its seed have ("matched"), so that
# their gaps to novel viewpoints compare. It gets three times as many updates for that;
# its record says what it reached.
# $(call viewpoints,NAME,FLAGS)
define viewpoints
train.$(1) := train_matrix_capsules $(presets)/matrix_capsules/solids_cpu.cfg $(2)
suites.$(1) := viewpoints,equivariance
minutes.$(1) := 21
$$(call seeds,$(1),0 1 2)
train.$(1)_baseline := train_matrix_capsules $(presets)/matrix_capsules/solids_cpu_baseline.cfg $(2)
suites.$(1)_baseline := $$(suites.$(1))
minutes.$(1)_baseline := 4
$$(call seeds,$(1)_baseline,0 1 2)
endef
# $(call matched,NAME,SEED)
define matched
RECORDS += $(1)_baseline_matched-$(2)
train.$(1)_baseline_matched-$(2) := $$(train.$(1)_baseline) \
  --seed=$(2) --num_steps=6000 --eval_every=100 --stop_accuracy=$$$$(sed -n \
  's/.*"metrics": {[^}]*"test_familiar_accuracy": \([0-9.]*\).*/\1/p' \
  results/records/$(1)-$(2).jsonl | head -n 1)
suites.$(1)_baseline_matched-$(2) := $$(suites.$(1))
minutes.$(1)_baseline_matched-$(2) := 8
results/records/$(1)_baseline_matched-$(2).jsonl: \
  | results/records/$(1)-$(2).jsonl
endef
# CapsNets on the same azimuths; the CNNs of solids_cpu are for them too. The rate of
# self-routing was chosen of 0.001 and 0.004 after 500 updates, by the accuracy from
# familiar azimuths.
train.solids_capsnet := train_capsnet $(presets)/capsnet/solids_capsnet_cpu.cfg
train.solids_cnn := train_capsnet $(presets)/capsnet/solids_cnn_cpu.cfg
suites.solids_cnn := viewpoints
minutes.solids_cnn := 5
train.solids_elevation_cnn := $(train.solids_cnn) --viewpoints=elevation
suites.solids_elevation_cnn := viewpoints
minutes.solids_elevation_cnn := 5
$(call seeds,solids_cnn,0 1 2)
$(call seeds,solids_elevation_cnn,0 1 2)
train.solids_self := $(train.solids_capsnet) --routing=self --learning_rate=0.004
$(foreach cell,capsnet self,\
  $(eval suites.solids_$(cell) := viewpoints$(comma)equivariance$(comma)calibration)\
  $(eval minutes.solids_$(cell) := 3)\
  $(call seeds,solids_$(cell),0 1 2))
$(eval $(call viewpoints,solids_cpu))
$(eval $(call viewpoints,solids_elevation,--viewpoints=elevation))
$(foreach name,solids_cpu solids_elevation,$(foreach number,0 1 2,\
  $(eval $(call matched,$(name),$(number)))))
$(foreach name,solids_cpu-0 solids_cpu_baseline-0,\
  $(eval suites.$(name) := $(suites.$(name))$(comma)attacks))

# Attacks on each of two networks, and those that were made on the other.
# $(call transfer,NAME,SOURCE)
define transfer
suites.$(1) := $(suites.$(1))$(comma)attacks
needs.$(1) := $(2)
options.$(1) := --source=$(RUNS)/$(2)
endef
$(eval $(call transfer,solids_elevation-0,solids_elevation_baseline-0))
$(eval $(call transfer,solids_elevation_baseline-0,solids_elevation-0))

# Ablations of matrix capsules: the network of solids_cpu with one thing changed.
$(foreach cell,vector no_coordinates margin_loss cross_entropy,\
  $(eval train.solids_cpu_$(cell) := train_matrix_capsules \
    $(presets)/matrix_capsules/solids_cpu_$(cell).cfg)\
  $(eval suites.solids_cpu_$(cell) := viewpoints)\
  $(eval minutes.solids_cpu_$(cell) := 21)\
  $(call seeds,solids_cpu_$(cell),0 1 2))

# Iterations of EM, after short trainings.
train.solids_sweep_2 := train_matrix_capsules $(presets)/matrix_capsules/solids_sweep.cfg
$(foreach count,1 3 5,\
  $(eval train.solids_sweep_$(count) := \
    $(train.solids_sweep_2) --num_iterations=$(count)))
suites.solids_sweep_2 := diagnostics,calibration
minutes.solids_sweep_1 := 3
minutes.solids_sweep_2 := 4
minutes.solids_sweep_3 := 6
minutes.solids_sweep_5 := 9
$(foreach count,1 2 3 5,$(call seeds,solids_sweep_$(count),0))

train.rbm_mnist := train_boltzmann $(presets)/boltzmann/rbm_mnist.cfg
suites.rbm_mnist := log_likelihood
minutes.rbm_mnist := 14
$(call seeds,rbm_mnist,0)

train.rbm_mnist_paper := train_boltzmann $(presets)/boltzmann/rbm_mnist_paper.cfg
suites.rbm_mnist_paper := log_likelihood,out_of_distribution,letters
minutes.rbm_mnist_paper := 14
$(call seeds,rbm_mnist_paper,0 1 2)

train.boltzmann_mnist := train_boltzmann $(presets)/boltzmann/boltzmann_mnist.cfg
suites.boltzmann_mnist := log_likelihood
minutes.boltzmann_mnist := 18
$(call seeds,boltzmann_mnist,0 1 2)

train.boltzmann_mnist_paper := train_boltzmann $(presets)/boltzmann/boltzmann_mnist_paper.cfg
suites.boltzmann_mnist_paper := log_likelihood
minutes.boltzmann_mnist_paper := 14
$(call seeds,boltzmann_mnist_paper,0 1 2)

train.boltzmann_mnist_exact := train_boltzmann $(presets)/boltzmann/boltzmann_mnist_exact.cfg
suites.boltzmann_mnist_exact := log_likelihood
minutes.boltzmann_mnist_exact := 14
$(call seeds,boltzmann_mnist_exact,0 1 2)

train.boltzmann_mnist_exact_gibbs := train_boltzmann $(presets)/boltzmann/boltzmann_mnist_exact.cfg --sweep=gibbs
suites.boltzmann_mnist_exact_gibbs := log_likelihood
minutes.boltzmann_mnist_exact_gibbs := 15
$(call seeds,boltzmann_mnist_exact_gibbs,0)

train.rbm_fashion := train_boltzmann $(presets)/boltzmann/rbm_fashion.cfg --num_steps=24000
suites.rbm_fashion := out_of_distribution
minutes.rbm_fashion := 6
$(call seeds,rbm_fashion,0)

train.rbm_fashion_slow := train_boltzmann $(presets)/boltzmann/rbm_fashion_slow.cfg --num_steps=24000
minutes.rbm_fashion_slow := 6
$(call seeds,rbm_fashion_slow,0)

train.boltzmann_fashion := train_boltzmann $(presets)/boltzmann/boltzmann_fashion.cfg
suites.boltzmann_fashion := out_of_distribution
minutes.boltzmann_fashion := 5
$(call seeds,boltzmann_fashion,0)

train.helmholtz_mnist := train_helmholtz $(presets)/helmholtz/helmholtz_mnist.cfg
suites.helmholtz_mnist := bound,out_of_distribution,letters
minutes.helmholtz_mnist := 10
$(call seeds,helmholtz_mnist,0 1 2)

train.helmholtz_mnist_slow := train_helmholtz $(presets)/helmholtz/helmholtz_mnist_slow.cfg
suites.helmholtz_mnist_slow := bound
minutes.helmholtz_mnist_slow := 14
$(call seeds,helmholtz_mnist_slow,0)

train.helmholtz_fashion := train_helmholtz $(presets)/helmholtz/helmholtz_fashion.cfg
suites.helmholtz_fashion := bound,out_of_distribution
minutes.helmholtz_fashion := 8
$(call seeds,helmholtz_fashion,0)

train.vae_mnist := train_vae $(presets)/vae/vae_mnist.cfg
suites.vae_mnist := bound
minutes.vae_mnist := 18
$(call seeds,vae_mnist,0 1 2)

train.vae_fashion := train_vae $(presets)/vae/vae_fashion.cfg
suites.vae_fashion := out_of_distribution
minutes.vae_fashion := 9
$(call seeds,vae_fashion,0)

train.vae_mnist_gaussian_short := train_vae $(presets)/vae/vae_mnist_gaussian.cfg --batch_size=64 --num_steps=12000
suites.vae_mnist_gaussian_short := bound,out_of_distribution,letters
minutes.vae_mnist_gaussian_short := 8
$(call seeds,vae_mnist_gaussian_short,0)

# On a GPU, where the scatter of templates was slow with deterministic operations; the
# minutes are without one.
train.scae_mnist_40 := train_scae --nodeterministic $(presets)/scae/scae_mnist_40.cfg
suites.scae_mnist_40 := label_curve,linear,affnist_like_clusters,equivariance,object_masks,out_of_distribution,letters
minutes.scae_mnist_40 := 210
$(call seeds,scae_mnist_40,0 1 2)

# The authors' script at its length, with the paper's 24 parts and objects: for a GPU.
train.scae_mnist_script := train_scae $(presets)/scae/scae_mnist.cfg \
  --num_parts=24 --num_objects=24
suites.scae_mnist_script := $(suites.scae_mnist_40)
minutes.scae_mnist_script := 1200
$(call seeds,scae_mnist_script,0 1 2)

train.scae_mnist_40_cpu := train_scae $(presets)/scae/scae_mnist_40_cpu.cfg
suites.scae_mnist_40_cpu := label_curve,linear,affnist_like_clusters,equivariance,object_masks
minutes.scae_mnist_40_cpu := 90
$(call seeds,scae_mnist_40_cpu,0)

# The same settings at the length of scae_mnist_40: fewer parts are kept.
train.scae_mnist_40_long := $(train.scae_mnist_40_cpu) --num_steps=60000
suites.scae_mnist_40_long := $(suites.scae_mnist_40)
minutes.scae_mnist_40_long := 260
$(call seeds,scae_mnist_40_long,0)

# This length with a rate that falls early and the entropy within images weighted as in
# scae_pilot_falling_within.
train.scae_mnist_40_within := $(train.scae_mnist_40_long) \
  --schedule=exponential --learning_rate=0.003 --final_rate_fraction=0.01 \
  --posterior_within_weight=3
suites.scae_mnist_40_within := $(suites.scae_mnist_40)
minutes.scae_mnist_40_within := 140
$(call seeds,scae_mnist_40_within,0 1 2)

# Which of the settings of scae_mnist_40_cpu matter. `whole` has all of them; `posterior`,
# `prior`, `parts` and `rate` take one group from scae_mnist_40; `paper` weighs all terms
# as scae_mnist_paper does; `optimiser` is that of the authors; `fast` doubles the rate, and
# `weak` takes a quarter of the weights of parts and deformations. `falling` has the steps of
# scae_mnist_40_cpu, and a rate that is below half of its peak after 3,000 of them: at rates
# near the peak, scae_mnist_40_long lost parts between steps 5,000 and 15,000. `within` weighs
# the entropy of the objects' shares within an image three times as much: in longer trainings
# it rises again, while parts get more probable and clusters get worse.
# $(call pilot,CELL,FLAGS,SEEDS,MINUTES)
define pilot
train.scae_pilot_$(1) := train_scae $(presets)/scae/scae_mnist_40_cpu.cfg \
  --num_steps=8000 --eval_every=2000 $(2)
minutes.scae_pilot_$(1) := $(or $(4),30)
$$(call seeds,scae_pilot_$(1),$(or $(3),0))
endef
$(eval $(call pilot,whole,,0 1 2))
$(eval $(call pilot,posterior,\
  --posterior_within_weight=0.7 --posterior_between_weight=0.2))
$(eval $(call pilot,prior,--prior_within_weight=2 --prior_between_weight=0.35))
$(eval $(call pilot,parts,--parts_weight=1 --dynamics_weight=10))
$(eval $(call pilot,weak,--parts_weight=0.05 --dynamics_weight=0.5))
$(eval $(call pilot,paper,--parts_weight=1 --dynamics_weight=10 \
  --prior_within_weight=1 --prior_between_weight=1 \
  --posterior_within_weight=10 --posterior_between_weight=10))
$(eval $(call pilot,rate,--learning_rate=0.002 --warmup_steps=500))
$(eval $(call pilot,fast,--learning_rate=0.01))
$(eval $(call pilot,falling,--num_steps=20000 --eval_every=5000 \
  --schedule=exponential --final_rate_fraction=0.01,0 1 2,75))
$(eval $(call pilot,falling_weak,--num_steps=20000 --eval_every=5000 \
  --schedule=exponential --final_rate_fraction=0.01 \
  --parts_weight=0.05 --dynamics_weight=0.5,0,75))
$(eval $(call pilot,falling_within,--num_steps=20000 --eval_every=5000 \
  --schedule=exponential --final_rate_fraction=0.01 \
  --posterior_within_weight=3,0 1 2,75))
$(eval $(call pilot,optimiser,\
  --optimizer=rmsprop --learning_rate=3e-5 --schedule=exponential \
  --decay_rate=1 --max_gradient=1e9))

train.scae_mnist_cpu := train_scae $(presets)/scae/scae_mnist_cpu.cfg
suites.scae_mnist_cpu := label_curve,linear,equivariance
minutes.scae_mnist_cpu := 45
$(call seeds,scae_mnist_cpu,0)

# Stacked capsule autoencoders without some part each: docs/results/unsupervised.md.
# $(call ablation,CELL,FLAGS)
define ablation
train.scae_ablation_$(1) := train_scae $(presets)/scae/scae_ablation.cfg $(2)
minutes.scae_ablation_$(1) := 3
$$(call seeds,scae_ablation_$(1),0 1 2)
endef
$(eval $(call ablation,full))
suites.scae_ablation_full-0 := out_of_distribution
$(eval $(call ablation,no_features,--num_features=0))
$(eval $(call ablation,no_deformations,--nodeformations))
$(eval $(call ablation,mlp,--object_encoder=mlp))
$(eval $(call ablation,linear,--part_encoder=linear))
$(eval $(call ablation,conv,--part_encoder=conv))
$(eval $(call ablation,pixels,--part_encoder=pixels))
$(eval $(call ablation,no_sparsity,\
  $(foreach name,prior_within prior_between posterior_within posterior_between,\
    --$(name)_weight=0)))
$(eval $(call ablation,no_noise,--nonoise))

train.scae_fashion_mnist_cpu := train_scae $(presets)/scae/scae_fashion_mnist_cpu.cfg
minutes.scae_fashion_mnist_cpu := 35
$(call seeds,scae_fashion_mnist_cpu,0)

train.constellation := train_constellation $(presets)/constellation/constellation.cfg
minutes.constellation := 30
$(call seeds,constellation,0 1 2)
suites.constellation-0 := gcm,ransac

# A quarter of the length; then with the sparsity of the paper's text, which has a
# gradient: that of the authors' code has none.
train.constellation_short := train_constellation $(presets)/constellation/constellation_short.cfg
train.constellation_sparse := $(train.constellation_short) --sparsity=soft
train.constellation_short_noise_0.1 := $(train.constellation_short) --noise=0.1
train.constellation_short_noise_0.25 := $(train.constellation_short) --noise=0.25
$(foreach name,constellation_short constellation_sparse \
  constellation_short_noise_0.1 constellation_short_noise_0.25,\
  $(eval minutes.$(name) := 10)\
  $(call seeds,$(name),0 1 2))

train.constellation_noise_0.1 := train_constellation $(presets)/constellation/constellation_noise_0.1.cfg
suites.constellation_noise_0.1 := gcm,ransac
minutes.constellation_noise_0.1 := 36
$(call seeds,constellation_noise_0.1,0)

train.constellation_noise_0.25 := train_constellation $(presets)/constellation/constellation_noise_0.25.cfg
suites.constellation_noise_0.25 := gcm,ransac
minutes.constellation_noise_0.25 := 36
$(call seeds,constellation_noise_0.25,0)

# The first thing to try, of models that have no other record on the 8x8 digits.
$(foreach model,boltzmann helmholtz vae multimnist,\
  $(eval train.$(model)_quick := train_$(model) \
    $(presets)/$(model)/$(model)_quick.cfg)\
  $(eval minutes.$(model)_quick := 1)\
  $(call seeds,$(model)_quick,0 1 2))

# Objects found by slot attention, of both forms, and by the set transformer; short
# runs first.
$(foreach encoder,set_transformer slots invariant_slots,\
  $(eval train.constellation_quick_$(encoder) := train_constellation \
    $(presets)/constellation/constellation_quick.cfg --encoder=$(encoder))\
  $(eval minutes.constellation_quick_$(encoder) := 1)\
  $(call seeds,constellation_quick_$(encoder),0))
train.slots_quick := train_slots $(presets)/slots/slots_quick.cfg
train.invariant_slots_quick := $(train.slots_quick) --invariant
minutes.slots_quick := 3
minutes.invariant_slots_quick := 4
$(call seeds,slots_quick,0 1 2)
$(call seeds,invariant_slots_quick,0 1 2)
train.scae_pairs_quick := train_scae $(presets)/scae/scae_pairs_quick.cfg
minutes.scae_pairs_quick := 2
$(call seeds,scae_pairs_quick,0)
train.constellation_slots := train_constellation $(presets)/constellation/constellation_slots.cfg
train.constellation_invariant_slots := $(train.constellation_slots) --encoder=invariant_slots
minutes.constellation_slots := 35
minutes.constellation_invariant_slots := 35
$(call seeds,constellation_slots,0)
$(call seeds,constellation_invariant_slots,0)

# Pairs of MNIST digits: a twentieth of the length first, beside stacked capsule
# autoencoders that take as long.
train.scae_multimnist_short := train_scae $(presets)/scae/scae_mnist_cpu.cfg \
  --scene=multimnist --pad=4 --max_shift=4 --num_steps=2000 --eval_every=500
train.scae_affnist_like_short := train_scae $(presets)/scae/scae_mnist_cpu.cfg \
  --scene=affnist_like --canvas=40 --num_steps=2000 --eval_every=500
short := --num_steps=1500 --warmup_steps=150 --eval_every=500
$(foreach scene,multimnist affnist_like,\
  $(eval train.slots_$(scene)_short := train_slots \
    $(presets)/slots/slots_$(scene).cfg $(short))\
  $(eval train.invariant_slots_$(scene)_short := \
    $(train.slots_$(scene)_short) --invariant)\
  $(foreach model,slots invariant_slots scae,\
    $(eval minutes.$(model)_$(scene)_short := 10)\
    $(call seeds,$(model)_$(scene)_short,0)))

$(foreach scene,multimnist affnist_like,\
  $(eval train.slots_$(scene) := train_slots $(presets)/slots/slots_$(scene).cfg)\
  $(eval train.invariant_slots_$(scene) := $(train.slots_$(scene)) --invariant)\
  $(eval minutes.slots_$(scene) := 180)\
  $(eval minutes.invariant_slots_$(scene) := 240)\
  $(call seeds,slots_$(scene),0)\
  $(call seeds,invariant_slots_$(scene),0))

train.generative_mnist_cpu := train_generative $(presets)/generative/generative_mnist_cpu.cfg
suites.generative_mnist_cpu := repair,swaps,duplicates,equivariance
minutes.generative_mnist_cpu := 25
$(call seeds,generative_mnist_cpu,0 1 2)

# Digits of 8x8 rotated in training by up to so many degrees (Smith et al., 2020,
# figure 4); poses_digits_generative has none.
$(foreach degrees,45 90 180,\
  $(eval train.generative_digits_$(degrees) := train_generative \
    $(presets)/generative/generative_quick.cfg --max_rotation=$(degrees))\
  $(eval minutes.generative_digits_$(degrees) := 2)\
  $(call seeds,generative_digits_$(degrees),0 1 2))

train.generative_mnist_40_cpu := train_generative $(presets)/generative/generative_mnist_40_cpu.cfg
suites.generative_mnist_40_cpu := equivariance
minutes.generative_mnist_40_cpu := 40
$(call seeds,generative_mnist_40_cpu,0 1 2)

train.transforming_mnist := train_transforming $(presets)/transforming/transforming_mnist.cfg
suites.transforming_mnist := few_labels,equivariance,out_of_distribution,letters
minutes.transforming_mnist := 3
$(call seeds,transforming_mnist,0 1 2)

train.transforming_fashion := train_transforming $(presets)/transforming/transforming_fashion.cfg
suites.transforming_fashion := equivariance
minutes.transforming_fashion := 3
$(call seeds,transforming_fashion,0 1 2)

train.transforming_mnist_affine := train_transforming $(presets)/transforming/transforming_mnist_affine.cfg
suites.transforming_mnist_affine := equivariance
minutes.transforming_mnist_affine := 8
$(call seeds,transforming_mnist_affine,0 1 2)

# Measurements without training, each in one process.
MEASUREMENTS := routing_costs-0 routing_fuzz-0 scaling-0
.PHONY: measurements
measurements: $(MEASUREMENTS:%=results/measurements/%.jsonl)

results/measurements/routing_costs-0.jsonl: | .venv
	mkdir -p $(@D)
	$(BIN)/python -m experiments.measure_routings \
	  $(presets)/capsnet/routings_digits.cfg --rounds=200 --out=$@

results/measurements/scaling-0.jsonl: | .venv
	mkdir -p $(@D)
	$(BIN)/python -m experiments.measure_scaling --out=$@

results/measurements/routing_fuzz-0.jsonl: | .venv
	mkdir -p $(@D)
	PYTHONPATH=tests/helpers:. $(BIN)/python -u tests/helpers/fuzz_routings.py \
	  --out=$@

.PHONY: records list-records missing-suites
records: $(RECORDS:%=results/records/%.jsonl)
record-%: results/records/%.jsonl ;

list-records:
	@$(foreach name,$(RECORDS),echo "$(name): $(train.$(name))";)

# A record is of one run: to add a suite, remove its file, and make it again.
missing-suites:
	@$(foreach name,$(RECORDS),file=results/records/$(name).jsonl; [ ! -e $$file ] || \
	  for suite in $(subst $(comma), ,$(suites.$(name))); do \
	  grep -q "\"suite\": \"$$suite\"" $$file || echo "$(name): $$suite"; done$(newline))

results/records/%.jsonl: | .venv
	@echo "# $*: about $(minutes.$*) minutes on two cores"
	$(BIN)/python -m experiments.record --check --workdir=$(RUNS)/$* --out=$@
	$(NICE) $(BIN)/python -m experiments.$(train.$*) \
	  --workdir=$(RUNS)/$* --data_dir=$(DATA_DIR)
	$(if $(needs.$*),$(foreach run,$(needs.$*),$(NICE) $(BIN)/python -m \
	  experiments.$(train.$(run)) --workdir=$(RUNS)/$(run) \
	  --data_dir=$(DATA_DIR) && )true)
	$(if $(suites.$*),$(NICE) $(BIN)/python -m experiments.evaluate \
	  --workdir=$(RUNS)/$* --data_dir=$(DATA_DIR) --suite=$(suites.$*) \
	  $(options.$*))
	$(BIN)/python -m experiments.record --workdir=$(RUNS)/$* --out=$@
