#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants one fault at a time and shows that a named test catches it.

usage: run.py [--build DIR] [PLANT ...]

A plant is a line under `#ifdef KVOF_PLANT_<NAME>`. The files that have it are compiled once more
with it, and the test program is linked with them before the layers they belong to: nothing else is
built. The named test must pass without the plant and fail with it. Ends with 0 if all are caught.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLANTS = {
    # plant: (test program, test)
    'one_host_computes_all': (
        'tests/unit/plan_report_test',
        'an_array_of_all_hosts_is_held_to_all_that_they_compute_side_by_side'),
    'noise_is_odd': (
        'tests/unit/plan_fit_test', 'waves_that_scatter_by_two_percent_are_all_used'),
    'plan_fifo_parallel': (
        'tests/unit/plan_simulate_test',
        'loads_and_prompts_that_follow_one_another_agree_with_the_closed_form'),
    'plan_sim_staging': (
        'tests/unit/plan_simulate_test',
        'less_staging_makes_lots_of_sessions_that_come_one_after_another'),
    'plan_sim_late': (
        'tests/unit/plan_simulate_test',
        'no_first_token_is_later_than_if_all_were_computed_in_order'),
    'plan_hits_distance': (
        'tests/unit/plan_hits_test',
        'every_size_hits_what_a_list_of_that_size_moved_by_hand_hits'),
    'best_for_median': (
        'tests/unit/plan_measured_test',
        'the_median_is_the_middle_of_the_repeats_and_not_the_best'),
    'knee_is_top': (
        'tests/unit/plan_measured_test',
        'the_knee_is_the_least_depth_that_is_nearly_as_fast_as_the_fastest'),
    'ceiling_forgotten': (
        'tests/unit/plan_measured_test',
        'what_one_session_can_draw_at_most_is_kept_apart_from_the_rate_of_all'),
    'last_for_median': (
        'tests/unit/plan_measured_test',
        'the_median_of_a_wave_is_predicted_apart_from_its_last'),
    'first_token_is_last': (
        'tests/unit/plan_answer_test',
        'the_first_token_counts_and_not_the_end_of_the_answer'),
    'visit_awake': (
        'tests/unit/loop_uring_test', 'a_loop_at_work_is_not_visited'),
    'visit_before_mail': (
        'tests/unit/loop_uring_test',
        'visits_and_messages_of_many_threads_keep_the_order_of_each'),
    'lands_unchecked': (
        'tests/unit/cache_values_test', 'no_part_lands_before_its_bytes_are_checked'),
    'flash_never_late': (
        'tests/unit/cache_flash_test',
        'a_silent_drive_is_late_at_the_deadline_with_the_buffer_free'),
    'drive_takes_all': (
        'tests/unit/cache_flash_test',
        'a_drive_that_stays_silent_never_takes_the_others_down_and_is_used_again'),
    'lanes_shared': (
        'tests/unit/cache_values_test',
        'a_device_that_answers_nothing_holds_nobody_up_at_the_others'),
    'footer_before_data': (
        'tests/fault/store_crash_test',
        'a_power_cut_at_every_write_loses_nothing_that_was_flushed'),
    'checksum_not_compared': (
        'tests/fault/store_flip_test', 'any_byte_of_a_value_flipped_costs_that_value_only'),
    'cap_off_by_segment': (
        'tests/fault/store_cap_test',
        'ten_times_the_cap_is_written_and_no_byte_past_the_cap_is_ever_touched'),
    'carry_unchecked': (
        'tests/fault/store_evict_test',
        'a_value_that_is_damaged_is_not_carried_and_costs_no_other'),
    'carry_out_of_order': (
        'tests/fault/store_crash_test',
        'a_kill_at_every_write_with_eviction_brings_nothing_wrong_and_nothing_deleted'),
    'evict_out_of_order': (
        'tests/fault/store_evict_test',
        'what_is_deleted_in_a_segment_that_stays_outlives_no_tombstone'),
    'tombstone_forgotten': (
        'tests/fault/store_evict_test',
        'a_tombstone_is_carried_while_an_older_segment_holds_what_it_covers'),
    'discard_live': (
        'tests/fault/store_evict_test', 'what_is_free_is_discarded_and_nothing_else'),
    'loan_forgotten': (
        'tests/unit/store_loan_test',
        'a_lent_value_outlives_many_turns_of_the_drive_and_holds_nobody_up'),
    'delete_not_logged': (
        'tests/unit/store_store_test',
        'an_overwrite_replaces_and_a_delete_removes_also_after_reopening'),
    'head_before_parts': (
        'tests/fault/store_stripe_test',
        'a_power_cut_at_every_write_leaves_the_old_value_or_the_new'),
    'renew_once': (
        'tests/unit/loop_uring_test',
        'a_thread_that_takes_a_loop_over_waits_for_files_that_are_short'),
    'orphans_kept': (
        'tests/fault/store_stripe_test',
        'a_kill_at_every_write_leaves_the_old_value_or_the_new'),
    'capsule_waits': (
        'tests/unit/target_share_test',
        'data_in_a_capsule_does_not_wait_for_what_comes_behind_it'),
    'catalog_checksum_ignored': (
        'tests/unit/store_set_test',
        'any_one_catalog_is_enough_and_without_all_four_the_drive_is_refused'),
    'stale_catalog_wins': (
        'tests/unit/store_set_test', 'namespaces_and_subsystems_are_listed_as_they_were_made'),
    'part_id_of_its_number': (
        'tests/unit/store_set_test',
        'what_a_removed_namespace_held_is_not_seen_by_the_next_in_its_place'),
    'hung_drive_takes_all': (
        'tests/fault/store_corner_test', 'a_drive_that_hangs_leaves_buffers_to_the_others'),
    'late_write_forgotten': (
        'tests/unit/store_set_test',
        'what_a_hung_drive_still_writes_of_a_removed_namespace_hits_no_other'),
    'half_joined': (
        'tests/unit/store_set_test',
        'a_replacement_that_fails_on_the_way_can_be_tried_again'),
    'block_slot_stale': (
        'tests/fault/store_block_test', 'what_is_read_is_what_was_written_last'),
    'block_flush_left_out': (
        'tests/fault/store_block_test',
        'a_power_cut_loses_nothing_flushed_and_shows_no_foreign_bytes'),
    'block_fua_unflushed': (
        'tests/fault/store_block_test',
        'a_power_cut_loses_nothing_flushed_and_shows_no_foreign_bytes'),
    'block_page_torn': (
        'tests/unit/store_block_format_test', 'a_page_of_which_a_part_is_older_is_not_believed'),
    'block_zero_long': (
        'tests/fault/store_block_test', 'what_is_read_is_what_was_written_last'),
    'new_drive_believed_at_once': (
        'tests/fault/store_drive_test',
        'a_crash_at_any_write_of_taking_a_drive_in_loses_nothing_of_the_others'),
    'orphan_listed': (
        'tests/fault/store_fault_test',
        'a_write_that_failed_and_landed_all_the_same_does_not_come_back_after_a_delete'),
    'scrub_blind': (
        'tests/fault/store_scrub_test',
        'values_that_went_bad_are_found_and_dropped_and_no_others'),
    'full_drive_chosen': (
        'tests/fault/store_drive_test',
        'drives_that_share_a_full_file_system_evict_below_their_cap_and_refuse_none'),
    'put_before_mark': (
        'tests/fault/store_corner_test',
        'what_another_drive_took_over_is_answered_once_the_old_one_is_not_believed'),
    'stall_endured': (
        'tests/fault/store_fault_test',
        'a_drive_that_stalls_ends_its_gets_in_time_and_loses_nothing_when_it_goes_on'),
    'flush_left_out': (
        'tests/fault/store_crash_test',
        'a_power_cut_at_every_write_loses_nothing_that_was_flushed'),
    'host_order_ignored': (
        'tests/unit/host_live_test',
        'operations_on_one_key_take_effect_in_the_order_they_were_submitted'),
    'host_store_repeated': (
        'tests/unit/host_live_test',
        'a_store_in_flight_when_the_array_dies_is_repeated_only_where_allowed'),
    'host_ghost_forgotten': (
        'tests/unit/host_live_test',
        'a_delete_that_was_late_holds_younger_operations_on_its_key'),
    'host_length_believed': (
        'tests/unit/host_kv_test',
        'a_length_that_disagrees_with_the_bytes_that_came_is_a_protocol_error'),
    'target_half_value': (
        'tests/unit/target_ns_kv_test',
        'a_host_that_leaves_in_the_middle_of_a_store_leaves_the_old_value_whole'),
    'target_short_length': (
        'tests/unit/target_ns_kv_test',
        'a_retrieve_into_a_smaller_buffer_moves_what_fits'),
    'target_name_told': (
        'tests/unit/target_admin_test',
        'a_forbidden_host_and_an_unknown_name_get_the_same_answer'),
    'target_traffic_unheard': (
        'tests/unit/target_admin_test', 'traffic_on_an_io_queue_keeps_a_host_alive'),
    'target_lane_unheard': (
        'tests/unit/lanes_target_admin_test', 'traffic_on_an_io_queue_keeps_a_host_alive'),
    'space_answered_there': (
        'tests/unit/store_space_test',
        'what_one_loop_puts_every_loop_gets_and_is_answered_where_it_asked'),
    'buffer_returned_twice': (
        'tests/unit/store_space_test',
        'what_one_loop_puts_every_loop_gets_and_is_answered_where_it_asked'),
    'wire_r2t_unasked': (
        'tests/unit/wire_tcp_host_test', 'r2t_for_a_read_or_an_unknown_command_gets_no_byte'),
    'wire_lease_forgotten': (
        'tests/unit/wire_tcp_host_test',
        'a_read_withdrawn_in_the_middle_of_its_data_drops_the_rest'),
    'wire_digest_forgiven': (
        'tests/unit/wire_tcp_ctrl_test',
        'a_bad_data_digest_in_the_middle_is_answered_once_after_the_rest'),
    'wire_hoard_endured': (
        'tests/unit/wire_tcp_ctrl_test', 'other_traffic_does_not_excuse_data_that_does_not_come'),
    'wire_turn_in_pieces': (
        'tests/unit/wire_turn_test',
        'the_answers_of_one_turn_go_in_one_send'),
    'cid_unmarked': (
        'tests/unit/target_admin_test', 'a_cid_is_in_use_from_its_command_to_its_answer'),
    'send_piece_again': (
        'tests/unit/loop_plain_test',
        'a_send_of_many_pieces_that_stops_inside_one_goes_on_there'),
    'wire_batch_crossed': (
        'tests/unit/wire_turn_test',
        'a_peer_that_reads_slowly_gets_all_bytes_in_order'),
    'wire_batch_lost_at_fault': (
        'tests/unit/wire_turn_test',
        'answers_of_a_turn_go_before_the_termreq_of_that_turn'),
    'wire_batch_lost_at_reset': (
        'tests/unit/wire_turn_test',
        'a_send_that_breaks_in_the_middle_gives_each_buffer_back_once'),
    'wire_wide_for_ever': (
        'tests/unit/wire_turn_test',
        'a_buffer_that_has_been_too_wide_for_long_is_given_back'),
    'wire_wide_unbounded': (
        'tests/unit/wire_turn_test',
        'wide_buffers_of_a_thousand_connections_stay_within_64_mib'),
    'wire_wide_mixed': (
        'tests/unit/wire_turn_test',
        'small_pdus_that_fill_receive_after_receive_widen_the_buffer'),
    'wire_batch_lost_at_close': (
        'tests/unit/wire_tcp_test', 'answers_given_right_before_the_close_arrive'),
    'get_errors_uncounted': (
        'tests/fault/store_fault_test', 'every_get_counts_as_a_hit_a_miss_or_an_error'),
    'wire_range_unchecked': (
        'tests/unit/nvme_tcp_pdu_test', 'c2h_data_lands_only_inside_the_buffer_and_in_order'),
    'plain_cancel_unheard': (
        'tests/unit/loop_plain_test', 'a_number_that_another_file_has_now_is_watched_anew'),
    'plain_end_lost': (
        'tests/unit/loop_plain_test', 'streams_give_all_their_bytes_and_then_their_end'),
    'plain_number_kept': (
        'tests/unit/loop_plain_test',
        'a_sock_that_a_child_still_holds_does_not_disturb_the_next_with_its_number'),
    'identity_not_compared': (
        'tests/unit/cache_core_test',
        'a_value_of_another_block_under_this_key_is_a_miss_with_reason_identity'),
    'deadline_ignored': (
        'tests/unit/cache_core_test', 'a_load_that_hangs_ends_at_its_deadline_as_late'),
    'split_ignores_queue': (
        'tests/unit/cache_place_test', 'a_longer_queue_never_loads_more'),
    'split_for_nothing': (
        'tests/sim/restore_tiers_test', 'a_split_that_gains_next_to_nothing_is_not_taken'),
    'pin_ends_with_dram': (
        'tests/unit/cache_pins_test',
        'a_scan_of_several_times_the_flash_does_not_evict_what_is_pinned'),
    'small_answers_are_slow': (
        'tests/unit/cache_restore_fault_test',
        'an_array_that_gave_small_answers_only_is_not_slow_for_the_time_they_took'),
    'doubt_of_time': (
        'tests/unit/cache_place_test', 'doubt_is_of_the_rate_on_both_sides'),
    'kept_not_carried': (
        'tests/fault/store_evict_test',
        'what_is_kept_outlives_scans_of_several_times_the_drives_though_nobody_asks_for_it'),
    'kept_late_goes': (
        'tests/fault/store_evict_test',
        'what_is_to_be_kept_while_its_segment_goes_does_not_go_with_it_or_is_told_so'),
    'kept_without_bound': (
        'tests/fault/store_evict_test',
        'no_more_than_its_share_of_a_drive_is_kept_and_stores_go_on'),
    'behind_batches_apart': (
        'tests/unit/cache_behind_test',
        'a_later_part_of_a_sequence_goes_before_a_head_that_still_waits'),
    'behind_starves': (
        'tests/unit/cache_behind_test',
        'a_sequence_that_grows_and_grows_does_not_starve_what_waits_behind_its_head'),
    'devices_alike': (
        'tests/sim/restore_tiers_test',
        'an_array_far_slower_than_the_other_is_planned_by_its_own_rate'),
    'idle_devices_count': (
        'tests/sim/restore_tiers_test',
        'arrays_that_were_asked_for_nothing_do_not_make_a_tier_slow'),
    'claim_while_loading': (
        'tests/unit/cache_restore_test', 'no_block_is_handed_out_while_its_buffer_may_be_written'),
    'hint_ends_at_damage': (
        'tests/unit/cache_restore_fault_test',
        'what_flash_can_not_give_to_a_hint_comes_from_the_array'),
    'trace_of_waits_lost': (
        'tests/unit/cache_restore_test', 'a_trace_tells_what_a_request_waited_for'),
    'layer_told_early': (
        'tests/unit/cache_restore_test', 'layer_0_of_the_whole_prefix_is_ready_first_then_the_next'),
    'done_without_compute': (
        'tests/unit/cache_restore_test',
        'an_engine_of_a_prefix_is_handed_every_block_that_is_not_usable'),
    'head_stored_first': (
        'tests/unit/cache_core_test', 'a_save_that_failed_anywhere_is_not_visible'),
    'head_evicted_first': (
        'tests/unit/cache_core_test',
        'a_load_of_a_prefix_keeps_its_head_longest_whatever_order_it_came_in'),
    'behind_visible_early': (
        'tests/unit/cache_behind_test',
        'nothing_of_a_block_is_seen_before_all_of_it_is_there'),
    'behind_head_first': (
        'tests/unit/cache_behind_test',
        'the_tail_of_a_sequence_is_written_before_its_head'),
    'touch_forgotten': (
        'tests/unit/cache_behind_test',
        's6_the_array_keeps_the_head_of_a_session_that_is_served_from_dram'),
    'policy_head_first': (
        'tests/unit/cache_policy_test', 'a_head_never_goes_before_what_comes_after_it'),
    'policy_admits_all': (
        'tests/unit/cache_policy_test', 'a_scan_is_not_admitted_and_what_comes_back_is'),
    'promotion_by_scan': (
        'tests/unit/cache_core_walk_test', 'a_scan_promotes_nothing_once_dram_is_full'),
    'pin_not_honoured': (
        'tests/unit/cache_hold_test',
        'a_pinned_block_is_never_evicted_whether_it_was_there_or_came_later'),
    'ttl_served': (
        'tests/unit/cache_hold_test',
        'what_could_not_be_deleted_in_time_is_not_served_and_tried_again'),
    'presence_for_ever': (
        'tests/unit/cache_hold_test',
        'presence_is_learned_by_one_batch_of_questions_and_believed_until_it_is_old'),
    'lost_array_believed': (
        'tests/unit/cache_hold_test', 'what_an_array_has_that_is_away_is_not_known_to_be_there'),
    'heads_not_divided_by_tp': (
        'tests/unit/plan_geometry_test',
        'every_published_model_is_exact_for_each_rank_and_illegal_splits_are_refused'),
    'head_dim_from_hidden': (
        'tests/unit/plan_geometry_test',
        'head_dim_of_the_file_goes_before_hidden_size_over_heads'),
    'mla_times_two': (
        'tests/unit/plan_geometry_test',
        'mla_keeps_one_latent_without_a_factor_of_two_and_without_heads'),
    'kv_dtype_from_weights': (
        'tests/unit/plan_geometry_test', 'fp8_weights_leave_the_kv_cache_at_two_bytes'),
    'uplift_linear': (
        'tests/unit/plan_money_test',
        'half_the_time_forty_percent_faster_is_a_sixth_more_and_not_a_fifth'),
    'doubts_are_kept_back': (
        'tests/unit/plan_report_test', 'what_a_measurement_doubts_is_said_with_the_advice'),
    'any_profile_fits': (
        'tests/unit/plan_report_test',
        'arms_of_another_precision_are_not_advised_by_and_the_difference_is_named'),
    'advice_recompute_ignored': (
        'tests/unit/plan_advice_test', 'recompute_that_is_as_quick_means_do_not_buy'),
    'wear_unamplified': (
        'tests/unit/plan_wear_test', 'write_amplification_is_part_of_what_wears_a_drive_out'),
    'staging_ignored': (
        'tests/unit/plan_spill_test', 'staging_is_counted_on_each_rank_not_on_each_host'),
    'gib_for_gb': (
        'tests/unit/plan_spill_test', 'a_working_set_that_fits_in_the_gpus_does_not_spill'),
    'mean_of_stages': (
        'tests/unit/plan_supply_test',
        'the_smallest_stage_is_the_rate_and_names_the_bottleneck'),
    'sla_of_the_median': (
        'tests/unit/plan_sla_test', 'the_number_of_sessions_holds_and_one_more_does_not'),
    'break_even_sign': (
        'tests/unit/plan_sla_test',
        'a_load_is_sooner_from_the_length_at_which_its_fixed_time_is_paid_back'),
    'go_back_one': (
        'tests/unit/plan_loss_test',
        'rdma_sends_all_again_that_was_under_way_behind_a_lost_packet'),
    'checkpoint_without_fixed': (
        'tests/unit/plan_move_test',
        'a_checkpoint_is_its_bytes_at_the_rate_of_writes_and_a_fixed_part'),
    'experts_all_active': (
        'tests/unit/plan_work_test', 'active_parameters_are_what_model_cards_round'),
    'median_for_last': (
        'tests/unit/plan_arm_test',
        'the_median_waits_for_its_share_of_the_loads_and_never_for_more_than_all'),
    'share_ignored': (
        'tests/unit/plan_arm_test',
        'the_median_waits_for_its_share_of_the_loads_and_never_for_more_than_all'),
    'resident_ignored': (
        'tests/unit/plan_published_test',
        'two_points_predict_the_third_when_two_of_its_sessions_were_in_memory'),
    'tail_ignored': (
        'tests/unit/plan_published_test',
        'two_points_predict_the_third_when_two_of_its_sessions_were_in_memory'),
    'rate_in_gib': (
        'tests/unit/plan_published_test',
        'two_points_predict_the_third_when_two_of_its_sessions_were_in_memory'),
    'free_loads_ignored': (
        'tests/unit/plan_fit_test', 'a_fixed_time_below_zero_is_zero_and_said'),
    'fixed_time_lost': (
        'tests/unit/plan_published_test', 'a_faster_client_leaves_the_fixed_time_as_it_was'),
    'odd_each_for_itself': (
        'tests/unit/plan_published_test',
        'the_rows_off_the_line_are_found_and_two_of_their_sixteen_sessions_were_not_read'),
    'rows_mixed': (
        'tests/unit/plan_published_test', 'two_engines_are_not_put_into_one_comparison'),
    'windows_ignored': (
        'tests/unit/plan_use_test',
        'where_layers_slide_a_load_grows_with_bytes_and_not_with_tokens'),
    'recompute_of_another_model': (
        'tests/unit/plan_use_test',
        'recompute_of_another_model_or_another_cache_is_not_told'),
    'lease_not_honoured': (
        'tests/unit/cache_core_test', 'what_match_found_in_dram_stays_until_the_lease_ends'),
}


def tool(name):
    """Debian's own, also where another one comes first in PATH."""
    debian = pathlib.Path('/usr/bin') / name
    return str(debian) if debian.exists() else name


def run(*args, cwd=None):
    done = subprocess.run(args, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        sys.exit(f'{" ".join(args)}\n{done.stdout[-3000:]}')


def planted(plant):
    """The files of src/ that have it."""
    word = re.compile(rf'\bKVOF_PLANT_{plant.upper()}\b')
    found = [p for p in sorted((ROOT / 'src').rglob('*.[ch]')) if word.search(p.read_text())]
    if not found or any(p.suffix == '.h' for p in found):
        sys.exit(f'{plant}: a plant is a line of a file src/*/*.c; found in {found}')
    return found


class Builder:
    def __init__(self, folder):
        self.folder = folder.resolve()
        entries = json.loads((self.folder / 'compile_commands.json').read_text())
        # A source is compiled for several programs; the library of its layer is what they link.
        self.compile = {(self.folder / e['file']).resolve(): e for e in entries
                        if e['output'].startswith('libkvof-')}

    def link(self, program):
        out = subprocess.run([tool('ninja'), '-C', self.folder, '-t', 'commands', program], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
        words = shlex.split(out.strip().splitlines()[-1])
        at = words.index('-o')
        assert words[at + 1] == program, words
        return words, at

    def build(self, plant, program, out):
        """The program with the plant, as `out` and with objects beside it."""
        objects = []
        for number, source in enumerate(planted(plant)):
            entry = self.compile[source]
            words = shlex.split(entry['command'])
            words[words.index('-o') + 1] = f'{out}.{number}.o'
            words[words.index('-MF') + 1] = f'{out}.{number}.d'
            run(*words, '-Wno-error', f'-DKVOF_PLANT_{plant.upper()}', cwd=self.folder)
            objects.append(f'{out}.{number}.o')
        words, at = self.link(program)
        run(*words[:at], '-o', str(out), *objects, *words[at + 2:], cwd=self.folder)


def passes(program, test):
    done = subprocess.run([program, test], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          errors='replace')
    return done.returncode == 0, done.stdout.strip().splitlines()


def judge(builder, plant, scratch):
    """What is to be said of one plant; starts with `ok` or `not ok`."""
    program, test = PLANTS[plant]
    out = scratch / plant
    builder.build(plant, program, out)
    good, lines = passes(out, test)
    out.unlink()
    if good:
        return f'not ok - {plant}: {test} did not notice'
    why = [line for line in lines if 'must hold' in line or line.startswith('ERROR')
           or (line.startswith('# ') and 'ok - kt' not in line)] or lines[-1:] or ['ended at once']
    return f'ok - {plant}: caught by {test} ({why[-1].lstrip("# ")[-120:]})'


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--build', help='build folder to use; without it, one of its own')
    parser.add_argument('plants', nargs='*', help=', '.join(PLANTS))
    opts = parser.parse_args()
    unknown = set(opts.plants) - set(PLANTS)
    if unknown:
        parser.error(f'no such plant: {", ".join(sorted(unknown))}')
    names = opts.plants or list(PLANTS)
    scratch = pathlib.Path(tempfile.mkdtemp(prefix='kvof-plant-'))
    folder = pathlib.Path(opts.build) if opts.build else scratch / 'build'
    missed = 0
    try:
        if not (folder / 'build.ninja').exists():
            run(tool('meson'), 'setup', str(folder), str(ROOT), '-Dbuildtype=debug', '-Dwerror=false')
        run(tool('ninja'), '-C', str(folder), *sorted({PLANTS[n][0] for n in names}))
        builder = Builder(folder)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            tests = sorted({PLANTS[n] for n in names})
            for row, (good, _) in zip(tests, pool.map(lambda t: passes(folder / t[0], t[1]), tests)):
                if not good:
                    missed += 1
                    print(f'not ok - {row[1]} fails without a plant')
            for line in pool.map(lambda n: judge(builder, n, scratch), names):
                missed += line.startswith('not')
                print(line, flush=True)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if missed else 0


if __name__ == '__main__':
    sys.exit(main())
