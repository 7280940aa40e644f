"""Lightning strategies that split layers (wavefront) or time (ring), and data, over processes.

A strategy collects the batches of an optimizer update; then the engine runs all of them.
Place in the flow: ``Trainer(strategy=WavefrontStrategy(...))``. Reads: the Trainer's batches.
Makes: the gradients of a single process, and whole checkpoints that any strategy can resume.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import Any, Literal

import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn

from seqdata import ConfigError, SeqDataWarning, SequenceBatch
from seqdata_models.parallel.callbacks import check_scores, check_whole_weights
from seqdata_models.parallel.engine import Engine
from seqdata_models.parallel.link import LinkTimeouts
from seqdata_models.parallel.mesh import Mesh, check_mesh
from seqdata_models.parallel.replicas import Replicas
from seqdata_models.parallel.ring import Ring
from seqdata_models.parallel.torch_engine import TorchWavefront, check_schedule
from seqdata_models.parallel.wavefront import Wavefront


class ParallelStrategy(DDPStrategy):
    """Base of the parallel strategies.

    A strategy trains the parts that the module names (``SupportsStages``), and does not call its
    ``training_step``. It logs ``train_loss``, the mean over the scored timesteps of an update.
    Validation, test and prediction run the whole module on every process.

    Args:
        size: Number of stages or parts of a replica.
        data: Number of replicas; None: as many as the devices allow.
        lane_groups: Number of groups of rows that follow each other.
        split_backward: Whether to compute gradients of weights later than those of inputs.
        seed: Seed of dropout masks.
        timeouts: Limits of the time that processes wait for each other; None: the defaults.
        options: Options of ``DDPStrategy``, such as ``timeout`` and ``process_group_backend``.

    Attributes:
        engine: Engine of the fit; None outside a fit.
    """

    def __init__(
        self,
        size: int,
        data: int | None,
        lane_groups: int,
        *,
        split_backward: bool,
        seed: int,
        timeouts: LinkTimeouts | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.size, self.data, self.lane_groups = size, data, lane_groups
        self.split_backward = split_backward
        self.engine: Engine | None = None
        self._seed, self._timeouts = seed, timeouts
        self._batches: list[SequenceBatch] = []
        self._gradients: list[tuple[nn.Parameter, Tensor | None]] = []
        self._latest_loss = torch.zeros((), dtype=torch.float32, device="cpu")
        self._replicas: Replicas | None = None
        self._latest_batch: int | None = None

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Data-parallel coordinate; all stages of a replica get the same batches."""
        world = self.num_nodes * self.num_processes
        return {"num_replicas": world // self.size, "rank": self.global_rank // self.size}

    def setup_environment(self) -> None:
        """Set up the processes.

        Raises:
            ConfigError: If their number does not fit the mesh.
        """
        check_mesh(self.size, self.data, self.num_nodes * self.num_processes)
        super().setup_environment()

    def setup(self, trainer: Trainer) -> None:
        """Set up training and, for a fit, create the engine.

        Raises:
            ConfigError: If the module cannot be split, or the strategy does not support an option
                or a callback of the Trainer.
        """
        if trainer.state.fn == TrainerFn.FITTING:
            self.check_trainer(trainer)
        super().setup(trainer)
        if self._replicas is None:
            self._replicas = Replicas(self.size, self.global_rank, self.world_size)
        self._replicas.join(trainer.lightning_module)
        plugin: Any = self.precision_plugin
        plugin.clip_grad_by_norm = self._clip_gradients

    def check_trainer(self, trainer: Trainer) -> None:
        """Raise if the strategy does not support an option of the Trainer or the module.

        Raises:
            ConfigError: If the module optimizes manually, or the precision is ``"16-mixed"``.
        """
        if not trainer.lightning_module.automatic_optimization:
            raise ConfigError(
                "parallel: `automatic_optimization` of the module must be True, but is False. "
                "Use `Wavefront` or `Ring` in a loop of your own."
            )
        if trainer.precision == "16-mixed":
            raise ConfigError(
                "parallel: `precision` of the Trainer must not be '16-mixed': each stage would "
                "scale its gradients by itself. Use 'bf16-mixed' or '32-true'."
            )

    def check_update(self, batches: int) -> None:
        """Accept any number of batches of an update.

        Args:
            batches: Number of batches of an update.
        """

    @abstractmethod
    def make_engine(self, module: nn.Module, mesh: Mesh) -> Engine:
        """Return the engine that trains a module on a mesh."""

    def configure_ddp(self) -> None:
        """Broadcast the weights of rank 0, and create the engine; the module is not wrapped."""
        module = self.lightning_module
        if module is None:
            return
        with torch.no_grad():
            for value in (*module.parameters(), *module.buffers()):
                dist.broadcast(value.detach(), 0)
        self._batches.clear()
        self._latest_batch = None
        self.engine = self.make_engine(module, Mesh(self.size, self.data, timeouts=self._timeouts))

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Collect a batch, and run the update when it is complete.

        Returns:
            () float, mean loss of the latest update over its scored timesteps; 0 before the first.

        Raises:
            ConfigError: If there is no fit, if the optimizer calls its closure twice for an update,
                if an update has the wrong number of batches, or if a callback records losses of
                batches and an update has several.
        """
        module, engine = self.lightning_module, self.engine
        if module is None or engine is None:
            raise ConfigError(
                "parallel: a training step must be part of a fit, but is not. Call Trainer.fit."
            )
        trainer = module.trainer
        self._check_closure(trainer)
        self._batches.append(next(iter((*args, *kwargs.values()))))
        every = trainer.accumulate_grad_batches
        self.check_update(every)
        check_scores(trainer, every * engine.mesh.data)
        if (trainer.fit_loop.batch_idx + 1) % every and not trainer.is_last_batch:
            return self._latest_loss
        batches, self._batches = self._batches, []
        with self.precision_plugin.train_step_context():
            total, count = engine.update(batches, 1 / every)
        # Between this and `backward` gradients are set to None, or to 0 in place.
        self._gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
        for parameter in module.parameters():
            parameter.grad = None
        mean = total / count.clamp(min=1)
        module.log("train_loss", mean.float(), batch_size=int(count), prog_bar=True)
        self._latest_loss = mean.to(self.root_device)
        return self._latest_loss

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Set the gradients that ``training_step`` has computed."""
        del optimizer, args, kwargs
        module: Any = self.lightning_module
        closure_loss = self.precision_plugin.pre_backward(closure_loss, module)
        for parameter, gradient in self._gradients:
            parameter.grad = gradient
        self._gradients = []
        return self.precision_plugin.post_backward(closure_loss, module)

    def validation_step(self, *args: Any, **kwargs: Any) -> Any:
        """Run validation of the whole module, with the weights of all stages."""
        if self.engine is not None:
            self.engine.synchronize()
        return super().validation_step(*args, **kwargs)

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the weights of all stages, with the names of the whole module.

        Warns if batches of an unfinished update wait: a resumed run does not train them.
        """
        if self._batches and self.is_global_zero:
            text = (
                "parallel: a checkpoint must be saved at the end of an update, whose batches run "
                f"together, but is saved while {len(self._batches)} wait for the others: a run "
                "that resumes from it does not train them, and its lanes restart. Save after a "
                "multiple of `accumulate_grad_batches` batches."
            )
            warnings.warn(text, SeqDataWarning, stacklevel=2)
        if self.engine is not None:
            self.engine.synchronize()
        return super().lightning_module_state_dict()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the state of an optimizer with the parts of all stages."""
        inner = getattr(optimizer, "optimizer", optimizer)
        if self.engine is None:
            return super().optimizer_state(inner)
        return self.engine.gather_optimizer(inner)

    def on_exception(self, exception: BaseException) -> None:
        """Report an exception of this process to all processes."""
        if self.engine is not None:
            self.engine.close()
            self.engine.mesh.leave(exception)
            self.engine = None
        super().on_exception(exception)

    def teardown(self) -> None:
        """Restore the whole module and whole optimizer states on every process."""
        engine, self.engine = self.engine, None
        if engine is not None:
            engine.synchronize()
            for optimizer in self.optimizers:
                optimizer.load_state_dict(engine.gather_optimizer(optimizer))
            engine.close()
            engine.mesh.close()
        if self._replicas is not None and self.lightning_module is not None:
            self._replicas.leave(self.lightning_module)
        super().teardown()

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Reduce a value over replicas, because the stages of a replica have the same batches."""
        replicas = None if self._replicas is None else self._replicas.group
        return super().reduce(tensor, group or replicas, reduce_op)

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return whether all processes, or any if ``all`` is False, pass True as ``decision``."""
        vote = torch.tensor(int(decision), dtype=torch.int64, device=self.root_device)
        votes = super().reduce(vote, None, "sum")
        return bool(votes == self.world_size) if all else bool(votes)

    def barrier(self, name: str | None = None) -> None:
        """Wait until all processes are here.

        Raises:
            PeerFailedError: If a process is gone, or does not come in time.
            BaseException: The error of another process, if one has failed.
        """
        if self.engine is not None:
            self.engine.mesh.barrier(name or "a barrier of the Trainer")
        super().barrier(name)

    def _check_closure(self, trainer: Trainer) -> None:
        """Raise if an optimizer calls its closure again for the same update."""
        if trainer.fit_loop.total_batch_idx == self._latest_batch:
            name = type(trainer.optimizers[0]).__name__
            raise ConfigError(
                f"parallel: the optimizer must call its closure once for each update, but {name} "
                "calls it again. Use another optimizer, such as Adam or SGD."
            )
        self._latest_batch = trainer.fit_loop.total_batch_idx

    def _clip_gradients(self, optimizer: Any, clip_val: float) -> None:
        """Clip the gradients of an optimizer by their norm over all stages."""
        if self.engine is not None:
            parameters = list(self.precision_plugin.main_params(optimizer))
            self.engine.clip_gradients(clip_val, parameters)


class WavefrontStrategy(ParallelStrategy):
    """Strategy that splits the layers of a recurrent stack over devices.

    Stage s runs chunk t while the stage before it runs chunk t + 1. Gradients are those of
    truncated BPTT on a single device. The speedup of S equal stages is N S / (N + S - 1), where N
    is chunks x lane groups.

    Args:
        stages: Number of stages into which the recurrent layers are split.
        chunks: Number of chunks of an update. ``accumulate_grad_batches`` of the Trainer must be
            this number.
        lane_groups: Number of groups of lanes that follow each other through the stages.
        data: Number of replicas, for a mesh of data x stages; None: as many as the devices allow.
        engine: ``seqdata`` accepts batches of any shape. ``torch`` runs the schedules of
            ``torch.distributed.pipelining``, for micro-batches with equal numbers of rows.
        schedule: Schedule of the engine ``torch``: ``GPipe``, ``1F1B``, or ``ZBV``, which needs at
            least two layers for each process.
        split_backward: Whether a stage sends the gradient of its inputs before it computes the
            gradients of its weights, in time that would be idle. It uses the recurrent cells of
            this package, which are slower than those of torch. ``ZBV`` always does so.
        seed: Seed of dropout masks.
        timeouts: Limits of the time that processes wait for each other; None: the defaults.
        options: Options of ``DDPStrategy``.

    Raises:
        ConfigError: If the engine or schedule is unknown, or ``split_backward`` is set with
            ``engine="torch"``.

    Examples:
        Trainer(devices=2, strategy=WavefrontStrategy(2, chunks=8), accumulate_grad_batches=8)
    """

    def __init__(
        self,
        stages: int = 2,
        chunks: int = 8,
        lane_groups: int = 1,
        *,
        data: int | None = None,
        engine: Literal["seqdata", "torch"] = "seqdata",
        schedule: Literal["GPipe", "1F1B", "ZBV"] = "1F1B",
        split_backward: bool = False,
        seed: int = 0,
        timeouts: LinkTimeouts | None = None,
        **options: Any,
    ) -> None:
        check_schedule(schedule)
        if engine not in ("seqdata", "torch"):
            raise ConfigError(
                f"wavefront: `engine` must be 'seqdata' or 'torch', but is {engine!r}."
            )
        if engine == "torch" and split_backward:
            raise ConfigError(
                "wavefront: `split_backward` must be False with engine='torch', but is True. Use "
                "schedule='ZBV', which splits it."
            )
        super().__init__(
            stages, data, lane_groups,
            split_backward=split_backward, seed=seed, timeouts=timeouts, **options,
        )  # fmt: skip
        self.chunks, self.engine_name, self.schedule = chunks, engine, schedule

    def check_trainer(self, trainer: Trainer) -> None:
        """Raise if the strategy does not support an option or a callback of the Trainer.

        Raises:
            ConfigError: If the module optimizes manually, the precision is ``"16-mixed"``, or a
                callback averages weights or compares the weights of ranks.
        """
        super().check_trainer(trainer)
        check_whole_weights(trainer)

    def check_update(self, batches: int) -> None:
        """Raise if an update does not have ``chunks`` batches.

        Args:
            batches: Number of batches of an update.

        Raises:
            ConfigError: If ``batches`` is not ``chunks``.
        """
        if batches != self.chunks:
            raise ConfigError(
                f"wavefront: `accumulate_grad_batches` must be `chunks`, {self.chunks}, but is "
                f"{batches}. Pass it to the Trainer, or `batches_per_update` to the DataModule."
            )

    def make_engine(self, module: nn.Module, mesh: Mesh) -> Engine:
        """Return the engine that trains a module on a mesh."""
        if self.engine_name == "torch":
            return TorchWavefront(
                module, mesh, self.lane_groups, schedule=self.schedule, seed=self._seed
            )
        return Wavefront(
            module, mesh, self.lane_groups, seed=self._seed, split_backward=self.split_backward
        )


class RingStrategy(ParallelStrategy):
    """Strategy that splits the timesteps of each row over devices.

    Gradients are those of full BPTT over the rows of a batch on a single device. The speedup of D
    parts is M D / (M + D - 1), where M is the number of lane groups. With a ``SequenceDataModule``,
    each process reads only its own timesteps, so no process has a whole row in training.

    Args:
        parts: Number of parts into which the timesteps of each row are split.
        lane_groups: Number of groups of rows that follow each other around the ring.
        data: Number of replicas, for a mesh of data x parts; None: as many as the devices allow.
        split_backward: Whether a part sends the gradient of its first state before it computes the
            gradients of its weights, as in ``WavefrontStrategy``.
        whole_rows: Whether each process reads whole rows and cuts out its part, for transforms that
            need whole rows.
        seed: Seed of dropout masks.
        timeouts: Limits of the time that processes wait for each other; None: the defaults.
        options: Options of ``DDPStrategy``.

    Examples:
        Trainer(devices=2, strategy=RingStrategy(2, lane_groups=4))
    """

    def __init__(
        self,
        parts: int = 2,
        lane_groups: int = 4,
        *,
        data: int | None = None,
        split_backward: bool = False,
        whole_rows: bool = False,
        seed: int = 0,
        timeouts: LinkTimeouts | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            parts, data, lane_groups,
            split_backward=split_backward, seed=seed, timeouts=timeouts, **options,
        )  # fmt: skip
        self.whole_rows = whole_rows

    @property
    def time_part(self) -> tuple[int, int]:
        """Index of the part of each row that this process reads, and the number of parts."""
        return (0, 1) if self.whole_rows else (self.global_rank % self.size, self.size)

    def make_engine(self, module: nn.Module, mesh: Mesh) -> Engine:
        """Return the engine that trains a module on a mesh."""
        return Ring(
            module, mesh, self.lane_groups, seed=self._seed, split_backward=self.split_backward
        )
